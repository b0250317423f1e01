#pragma once
// c10d's store listens on every interface, whatever address it is given, and offers no way to say otherwise
// in all versions that are supported.

namespace thinwire {

/// Makes what this process listens to at the TCP port reachable from this machine's loopback addresses only.
/// False when there is no such listener, or the system does not allow it (Linux before 5.7 without
/// CAP_NET_RAW).
bool restrict_to_loopback(int port);

}  // namespace thinwire
