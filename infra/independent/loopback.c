/* Keeps the server that it is preloaded into on 127.0.0.1: DynamoDB Local listens on all
   interfaces, and has no option to change that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    if (address->sa_family == AF_INET6) {
        errno = EACCES;
        return -1;
    }
    if (address->sa_family != AF_INET || length < sizeof(struct sockaddr_in))
        return next(descriptor, address, length);
    struct sockaddr_in loopback = *(const struct sockaddr_in *)address;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return next(descriptor, (const struct sockaddr *)&loopback, sizeof loopback);
}
