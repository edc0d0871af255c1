/* An automount as systemd makes it. Arguments: a directory, and a command that mounts something on
 * it. Prints "ready", runs the command at the first access to the directory, and answers the access
 * with the command's result. Ends after that and leaves both mounts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/auto_fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	int pipes[2], root, status = 1;
	char options[128];
	union autofs_v5_packet_union packet;

	if (count < 3 || pipe2(pipes, O_CLOEXEC))
		return 2;
	setpgid(0, 0);
	snprintf(options, sizeof(options), "fd=%d,pgrp=%d,minproto=5,maxproto=5,direct", pipes[1], getpgrp());
	if (mount("automount", arguments[1], "autofs", 0, options)) {
		perror("mount");
		return 3;
	}
	root = open(arguments[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return 4;
	puts("ready");
	fflush(stdout);
	if (read(pipes[0], &packet, sizeof(packet)) <= 0)
		return 5;
	pid_t child = fork();
	if (child == 0) {
		/* As systemd does, in this process group: a process of another one that touches the directory
		 * waits for what it should mount itself. */
		execv(arguments[2], arguments + 2);
		_exit(127);
	}
	waitpid(child, &status, 0);
	unsigned long token = packet.v5_packet.wait_queue_token;
	ioctl(root, status == 0 ? AUTOFS_IOC_READY : AUTOFS_IOC_FAIL, token);
	ioctl(root, AUTOFS_IOC_CATATONIC, 0);
	return status != 0;
}
