/* Prints what ioctls answer on a mounted file system, so that two mounts of one image can be
 * compared. Arguments: the mount's root; "errors" for the errors alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static int root;

static uint64_t hash(const unsigned char *bytes, size_t length)
{
	uint64_t sum = 1469598103934665603u;
	while (length--)
		sum = (sum ^ *bytes++) * 1099511628211u;
	return sum;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void print_sorted(char **lines, size_t count)
{
	qsort(lines, count, sizeof(*lines), compare);
	for (size_t i = 0; i < count; i++) {
		puts(lines[i]);
		free(lines[i]);
	}
}

/* Calls `visit` for each item of a tree, by the first or the second version of the search. */
static int search(uint64_t tree, size_t space, void (*visit)(struct btrfs_ioctl_search_header *, unsigned char *))
{
	size_t size = sizeof(struct btrfs_ioctl_search_args_v2) + space;
	struct btrfs_ioctl_search_args_v2 *second = calloc(1, size);
	struct btrfs_ioctl_search_args *first = calloc(1, sizeof(*first));
	struct btrfs_ioctl_search_key *key = space ? &second->key : &first->key;
	unsigned char *found = space ? (unsigned char *)second->buf : (unsigned char *)first->buf;
	int result = 0;

	key->tree_id = tree;
	key->max_objectid = key->max_offset = key->max_transid = UINT64_MAX;
	key->max_type = 255;
	for (;;) {
		key->nr_items = 1000;
		second->buf_size = space;
		result = space ? ioctl(root, BTRFS_IOC_TREE_SEARCH_V2, second) : ioctl(root, BTRFS_IOC_TREE_SEARCH, first);
		if (result < 0) {
			printf("tree %llu: errno %d, size %llu\n", (unsigned long long)tree, errno,
			       (unsigned long long)(errno == EOVERFLOW ? second->buf_size : 0));
			break;
		}
		if (key->nr_items == 0)
			break;
		unsigned char *at = found;
		struct btrfs_ioctl_search_header header;
		for (unsigned i = 0; i < key->nr_items; i++) {
			memcpy(&header, at, sizeof(header));
			visit(&header, at + sizeof(header));
			at += sizeof(header) + header.len;
		}
		key->min_objectid = header.objectid;
		key->min_type = header.type;
		key->min_offset = header.offset + 1;
		if (key->min_offset == 0 && ++key->min_type > 255) {
			key->min_type = 0;
			key->min_objectid++;
		}
	}
	free(first);
	free(second);
	return result;
}

static void print_item(struct btrfs_ioctl_search_header *header, unsigned char *data)
{
	printf("(%llu %u %llu) %llu: %u bytes %llx\n", (unsigned long long)header->objectid, header->type,
	       (unsigned long long)header->offset, (unsigned long long)header->transid, header->len,
	       (unsigned long long)hash(data, header->len));
}

static void print_owners(uint64_t logical, uint64_t size, int second, uint64_t flags)
{
	unsigned char *bytes = calloc(1, size < 16 ? 16 : size);
	struct btrfs_data_container *container = (void *)bytes;
	struct btrfs_ioctl_logical_ino_args args = {.logical = logical, .size = size, .flags = flags, .inodes = (uint64_t)bytes};
	char *lines[4096];
	size_t count = 0;

	if (ioctl(root, second ? BTRFS_IOC_LOGICAL_INO_V2 : BTRFS_IOC_LOGICAL_INO, &args) < 0) {
		printf("owners of %llu: errno %d\n", (unsigned long long)logical, errno);
		free(bytes);
		return;
	}
	printf("owners of %llu, size %llu, version %d, flags %llu: %u %u %u %u\n", (unsigned long long)logical,
	       (unsigned long long)size, second + 1, (unsigned long long)flags, container->bytes_left,
	       container->bytes_missing, container->elem_cnt, container->elem_missed);
	/* Which of the owners are left out is not told. */
	for (unsigned i = 0; i < container->elem_cnt && container->elem_missed == 0 && count < 4096; i += 3)
		if (asprintf(&lines[count++], "  inode %llu offset %llu root %llu", (unsigned long long)container->val[i],
			     (unsigned long long)container->val[i + 1], (unsigned long long)container->val[i + 2]) < 0)
			exit(3);
	print_sorted(lines, count);
	free(bytes);
}

static void visit_extent(struct btrfs_ioctl_search_header *header, unsigned char *data)
{
	struct btrfs_extent_item item;
	if (header->type != BTRFS_EXTENT_ITEM_KEY)
		return;
	memcpy(&item, data, sizeof(item));
	if (!(item.flags & BTRFS_EXTENT_FLAG_DATA))
		return;
	print_owners(header->objectid, 65536, 0, 0);
	print_owners(header->objectid + header->offset - 4096, 65536, 0, 0);
	print_owners(header->objectid + 4096, 65536, 1, BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET);
	print_owners(header->objectid, 16 + 24 * 2 + 5, 1, 0);
	print_owners(header->objectid, 7, 0, 0);
}

static void print_paths(uint64_t inode, uint64_t size)
{
	unsigned char *bytes = calloc(1, size < 4096 ? 4096 : size);
	struct btrfs_data_container *container = (void *)bytes;
	struct btrfs_ioctl_ino_path_args args = {.inum = inode, .size = size, .fspath = (uint64_t)bytes};
	char *lines[512];
	size_t count = 0;

	if (ioctl(root, BTRFS_IOC_INO_PATHS, &args) < 0) {
		printf("paths of %llu: errno %d\n", (unsigned long long)inode, errno);
		free(bytes);
		return;
	}
	printf("paths of %llu, size %llu: %u found, %u missed\n", (unsigned long long)inode, (unsigned long long)size,
	       container->elem_cnt, container->elem_missed);
	if (container->elem_missed == 0)
		printf("  %u left, %u missing\n", container->bytes_left, container->bytes_missing);
	for (unsigned i = 0; i < container->elem_cnt && container->elem_missed == 0 && count < 512; i++)
		if (asprintf(&lines[count++], "  %s", (char *)container->val + container->val[i]) < 0)
			exit(3);
	print_sorted(lines, count);
	free(bytes);
}

static void visit_inode(struct btrfs_ioctl_search_header *header, unsigned char *data)
{
	(void)data;
	if (header->type != BTRFS_INODE_ITEM_KEY)
		return;
	struct btrfs_ioctl_ino_lookup_args lookup = {.treeid = 5, .objectid = header->objectid};
	if (ioctl(root, BTRFS_IOC_INO_LOOKUP, &lookup) == 0)
		printf("inode %llu: %s\n", (unsigned long long)header->objectid, lookup.name);
	print_paths(header->objectid, 4096);
	print_paths(header->objectid, 40);
}

static void print_spaces(uint64_t slots)
{
	struct btrfs_ioctl_space_args *args = calloc(1, sizeof(*args) + 64 * sizeof(args->spaces[0]));
	char *lines[64];
	size_t count = 0;

	args->space_slots = slots;
	if (ioctl(root, BTRFS_IOC_SPACE_INFO, args) < 0) {
		printf("spaces: errno %d\n", errno);
		return;
	}
	printf("%llu spaces\n", (unsigned long long)args->total_spaces);
	/* A kernel reserves as it runs. */
	for (unsigned i = 0; slots == 64 && i < args->total_spaces; i++)
		if (!(args->spaces[i].flags & BTRFS_SPACE_INFO_GLOBAL_RSV) &&
		    asprintf(&lines[count++], "  %llx: %llu %llu", (unsigned long long)args->spaces[i].flags,
			     (unsigned long long)args->spaces[i].total_bytes, (unsigned long long)args->spaces[i].used_bytes) < 0)
			exit(3);
	print_sorted(lines, count);
	free(args);
}

static void print_statistics(uint64_t devid)
{
	struct btrfs_ioctl_get_dev_stats stats = {.devid = devid, .nr_items = 99};
	if (ioctl(root, BTRFS_IOC_GET_DEV_STATS, &stats) < 0) {
		printf("statistics of %llu: errno %d\n", (unsigned long long)devid, errno);
		return;
	}
	printf("statistics of %llu: %llu items\n", (unsigned long long)devid, (unsigned long long)stats.nr_items);
	for (int i = 0; i < 5; i++)
		printf("  %llu\n", (unsigned long long)stats.values[i]);
}

#define TRY(what, call) printf("%s: %d\n", what, (call) < 0 ? errno : 0)

static void print_errors(void)
{
	char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct btrfs_ioctl_search_args_v2 *search = (void *)(page + 4096 - sizeof(*search));
	struct btrfs_ioctl_logical_ino_args logical = {.logical = 1 << 20, .size = 4096, .inodes = (uint64_t)page};
	struct btrfs_ioctl_ino_path_args paths = {.inum = 256, .size = 4096};
	struct btrfs_ioctl_send_args send = {.send_fd = 1};
	struct btrfs_ioctl_search_args first = {.key = {.tree_id = 77777, .nr_items = 1}};
	int null = open("/dev/null", O_RDONLY);

	/* The buffer after the argument may not be written. */
	mprotect(page + 4096, 4096, PROT_READ);
	search->key.tree_id = 5;
	search->key.max_objectid = search->key.max_offset = search->key.max_transid = UINT64_MAX;
	search->key.max_type = 255;
	search->key.nr_items = 10;
	search->buf_size = 4096;
	TRY("search into read-only memory", ioctl(root, BTRFS_IOC_TREE_SEARCH_V2, search));
	printf("  first byte %d\n", page[4096]);
	munmap(page + 4096, 4096);
	TRY("search into no memory", ioctl(root, BTRFS_IOC_TREE_SEARCH_V2, search));
	search->buf_size = 5;
	TRY("search with a tiny buffer", ioctl(root, BTRFS_IOC_TREE_SEARCH_V2, search));
	printf("  size %llu\n", (unsigned long long)search->buf_size);
	TRY("search of a missing tree", ioctl(root, BTRFS_IOC_TREE_SEARCH, &first));
	TRY("owners of no extent", ioctl(root, BTRFS_IOC_LOGICAL_INO, &logical));
	logical.reserved[1] = 1;
	TRY("owners with reserved fields", ioctl(root, BTRFS_IOC_LOGICAL_INO_V2, &logical));
	logical.reserved[1] = 0;
	logical.flags = 2;
	TRY("owners with unknown flags", ioctl(root, BTRFS_IOC_LOGICAL_INO_V2, &logical));
	paths.inum = 99999;
	TRY("paths of no inode", ioctl(root, BTRFS_IOC_INO_PATHS, &paths));
	send.flags = 1 << 20;
	TRY("send with unknown flags", ioctl(root, BTRFS_IOC_SEND, &send));
	send.flags = 0;
	TRY("send of a writable subvolume", ioctl(root, BTRFS_IOC_SEND, &send));
	int snapshot = openat(root, "snapshot", O_RDONLY);
	send.send_fd = 999;
	TRY("send to no descriptor", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	send.send_fd = null;
	TRY("send to a descriptor for reading", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	send.clone_sources_count = 3;
	send.send_fd = 1;
	TRY("send with sources nowhere", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	send.clone_sources_count = 0;
	send.parent_root = 5;
	TRY("send from a writable parent", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	send.parent_root = 77777;
	TRY("send from a missing parent", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	send.parent_root = 0;
	send.flags = BTRFS_SEND_FLAG_VERSION;
	send.version = 99;
	TRY("send of an unknown version", ioctl(snapshot, BTRFS_IOC_SEND, &send));
	first.key.tree_id = 5;
	if (setgid(1000) || setuid(1000))
		exit(3);
	TRY("search by a user", ioctl(root, BTRFS_IOC_TREE_SEARCH, &first));
	TRY("owners by a user", ioctl(root, BTRFS_IOC_LOGICAL_INO, &logical));
	TRY("paths by a user", ioctl(root, BTRFS_IOC_INO_PATHS, &paths));
	TRY("send by a user", ioctl(snapshot, BTRFS_IOC_SEND, &send));
}

int main(int count, char **arguments)
{
	static const uint64_t trees[] = {1, 2, 3, 4, 5, 7, 9, 256, 257, 258};

	if (count < 2 || (root = open(arguments[1], O_RDONLY | O_DIRECTORY)) < 0)
		return 2;
	if (count > 2) {
		print_errors();
		return 0;
	}
	for (size_t i = 0; i < sizeof(trees) / sizeof(*trees); i++) {
		printf("tree %llu\n", (unsigned long long)trees[i]);
		search(trees[i], 0, print_item);
		search(trees[i], 65536, print_item);
	}
	search(5, 150, print_item);
	search(2, 0, visit_extent);
	search(5, 0, visit_inode);
	print_spaces(0);
	print_spaces(2);
	print_spaces(64);
	print_statistics(1);
	print_statistics(9);
	return 0;
}
