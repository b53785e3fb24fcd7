// SPDX-License-Identifier: Apache-2.0
#include "atoll/transport/socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace atl::transport {

Error unavailable(const std::string& what, int error_number) {
  std::string message = with_errno(what, error_number);
  if (error_number == EMFILE) message += "; raise the limit of open files (ulimit -n)";
  if (error_number == ENFILE) message += "; raise the system's limit of open files (sysctl fs.file-max)";
  return {ErrorKind::kUnavailable, message};
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

int take_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

pid_t peer_process(int fd) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 ? credentials.pid : 0;
}

Fd open_socket(int family) { return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

Fd try_listen(const SocketAddress& address) {
  Fd fd = open_socket(address.family());
  if (!fd) return fd;
  if (address.family() != AF_UNIX) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

Fd accept_from(int listener) { return Fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

bool lacks_resources(int error_number) noexcept {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS || error_number == ENOMEM;
}

int start_connecting(int fd, const SocketAddress& to) {
  int result = 0;
  do {
    result = ::connect(fd, to.get(), to.length);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EISCONN) return 0;
  return errno == EALREADY ? EINPROGRESS : errno;
}

}  // namespace atl::transport
