/* Preloaded into programs that ask whether a mount is one of Btrfs before they use it: statfs and the
 * table of mounts show Papilio's mounts as those of Btrfs, and the root of each subvolume has inode
 * number 256. Everything else is what the mount does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define FUSE_MAGIC 0x65735546
#define BTRFS_MAGIC 0x9123683E

#define SHOW(name, first, buffer)                                                                    \
	int name(first argument, struct buffer *found)                                                   \
	{                                                                                                \
		int (*next)(first, struct buffer *) = dlsym(RTLD_NEXT, #name);                               \
		int result = next(argument, found);                                                          \
		if (result == 0 && found->f_type == FUSE_MAGIC)                                              \
			found->f_type = BTRFS_MAGIC;                                                             \
		return result;                                                                               \
	}

SHOW(statfs, const char *, statfs)
SHOW(statfs64, const char *, statfs64)
SHOW(fstatfs, int, statfs)
SHOW(fstatfs64, int, statfs64)

#define NUMBER(name, parameters, arguments)                                                          \
	int name parameters                                                                              \
	{                                                                                                \
		int(*next) parameters = dlsym(RTLD_NEXT, #name);                                             \
		int result = next arguments;                                                                 \
		if (result == 0 && (found->st_ino & 0xffffffffff) == 256)                                    \
			found->st_ino = 256;                                                                     \
		return result;                                                                               \
	}

NUMBER(stat, (const char *path, struct stat *found), (path, found))
NUMBER(stat64, (const char *path, struct stat64 *found), (path, found))
NUMBER(lstat, (const char *path, struct stat *found), (path, found))
NUMBER(lstat64, (const char *path, struct stat64 *found), (path, found))
NUMBER(fstat, (int file, struct stat *found), (file, found))
NUMBER(fstat64, (int file, struct stat64 *found), (file, found))

struct mntent *getmntent(FILE *table)
{
	struct mntent *(*next)(FILE *) = dlsym(RTLD_NEXT, "getmntent");
	struct mntent *entry = next(table);
	if (entry && strcmp(entry->mnt_type, "fuse.papilio") == 0)
		entry->mnt_type = "btrfs";
	return entry;
}
