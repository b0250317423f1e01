#pragma once
// What messages over sockets cost this machine's cores, whatever the network.

namespace thinwire {

/// CPU time of both ends.
struct SocketCost {
  double seconds_per_byte = 0;     ///< To send it over TCP and to receive it, and of its checksums.
  double seconds_per_message = 0;  ///< Of few bytes: system calls, and threads that sleep and are woken.
};

/// Measured on the loopback device within some tenths of a second, each the middle of several tries. Throws
/// std::runtime_error that names the call that failed.
SocketCost measure_socket_cost();

}  // namespace thinwire
