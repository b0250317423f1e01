#pragma once
// What messages over sockets cost this machine's cores, whatever the network.

namespace thinwire {

/// CPU time to send a byte over TCP and to receive one, and of their checksums at both ends: measured on the
/// loopback device within some tens of milliseconds, the middle of several tries. Throws std::runtime_error
/// that names the call that failed.
double measure_socket_seconds_per_byte();

}  // namespace thinwire
