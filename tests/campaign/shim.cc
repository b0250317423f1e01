// Faults inside of one process that nothing outside can make; preloaded into the campaign's ranks, idle until
// called.
//   campaign_flip(n)    turns over one bit of what the process receives, n payload bytes from now: between
//                       the sender, whose checksums are made, and the receiver, who has not looked yet
//   campaign_flipped()  the sender's port, once that has happened; else 0
//   campaign_clock(s)   lets the time of day jump by s seconds; the monotonic clock goes on as clocks do
//   campaign_lose(n)    drops n of 1,000 packets that arrive at this process's TCP connections, as a bad
//                       cable would
// Only reads from sockets of Gloo are touched: those of the rendezvous store have the port in MASTER_PORT at
// one end, and Gloo's own headers, of 48 bytes, are no payload.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace {

constexpr std::size_t kGlooHeader = 48;

std::atomic<long> countdown{-1};  // payload bytes before the bit; below 0: not armed
std::atomic<int> flipped{0};
std::atomic<long> clock_offset{0};

}  // namespace

extern "C" {

void campaign_flip(long bytes) {
  countdown = bytes;
}
int campaign_flipped(void) {
  return flipped;
}
void campaign_clock(long seconds) {
  clock_offset += seconds;
}

void campaign_lose(long per_mille) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(SKF_AD_OFF + SKF_AD_RANDOM)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, static_cast<unsigned>(per_mille * 4294967L), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFFu),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    int domain = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) continue;
    if (domain == AF_INET || domain == AF_INET6) {
      setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    }
  }
}

static int port_of(int descriptor, int (*end)(int, struct sockaddr*, socklen_t*)) {
  sockaddr_storage address;
  socklen_t length = sizeof address;
  if (end(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return -1;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return -1;
}

static int carries_payload(int descriptor) {
  const char* text = std::getenv("MASTER_PORT");
  const int store = text == nullptr ? 0 : std::atoi(text);
  const int here = port_of(descriptor, getsockname);
  const int there = port_of(descriptor, getpeername);
  return here > 0 && there > 0 && here != store && there != store;
}

static ssize_t pass_on(int descriptor, void* buffer, size_t wanted, ssize_t arrived) {
  if (arrived <= 0 || countdown < 0) return arrived;
  const int error = errno;
  if (wanted != kGlooHeader && carries_payload(descriptor)) {
    const long before = countdown.fetch_sub(arrived);
    if (before >= 0 && before < arrived) {
      static_cast<unsigned char*>(buffer)[before] ^= static_cast<unsigned char>(1u << (before % 8));
      flipped = port_of(descriptor, getpeername);
    }
  }
  errno = error;
  return arrived;
}

#define NEXT(name) reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))

ssize_t read(int descriptor, void* buffer, size_t size) {
  static decltype(&read) next;
  if (next == nullptr) next = NEXT(read);
  return pass_on(descriptor, buffer, size, next(descriptor, buffer, size));
}

ssize_t recv(int descriptor, void* buffer, size_t size, int flags) {
  static decltype(&recv) next;
  if (next == nullptr) next = NEXT(recv);
  return pass_on(descriptor, buffer, size, next(descriptor, buffer, size, flags));
}

int clock_gettime(clockid_t clock, timespec* now) {
  static decltype(&clock_gettime) next;
  if (next == nullptr) next = NEXT(clock_gettime);
  const int status = next(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += clock_offset;
  return status;
}

int gettimeofday(timeval* __restrict now, void* __restrict zone) {
  static decltype(&gettimeofday) next;
  if (next == nullptr) next = NEXT(gettimeofday);
  const int status = next(now, zone);
  if (status == 0) now->tv_sec += clock_offset;
  return status;
}

time_t time(time_t* result) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

// A wait until a time of day that begins after a jump ends by this process's clock. The kernel knows nothing
// of the jump, so it waits a little at a time; that a wait may end early is any caller's to expect.
int pthread_cond_timedwait(pthread_cond_t* __restrict condition, pthread_mutex_t* __restrict mutex,
                           const timespec* __restrict end) {
  static decltype(&pthread_cond_timedwait) next;
  if (next == nullptr)
    next = reinterpret_cast<decltype(next)>(dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"));
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  // Monotonic times, which a condition may be set to, are far smaller.
  if (end->tv_sec < now.tv_sec / 2 || clock_offset == 0) return next(condition, mutex, end);
  timespec slice = now;
  slice.tv_sec -= clock_offset;
  slice.tv_nsec += 20000000;
  if (slice.tv_nsec >= 1000000000) {
    slice.tv_nsec -= 1000000000;
    slice.tv_sec += 1;
  }
  if (now.tv_sec > end->tv_sec || (now.tv_sec == end->tv_sec && now.tv_nsec >= end->tv_nsec))
    return ETIMEDOUT;
  const int status = next(condition, mutex, &slice);
  return status == ETIMEDOUT ? 0 : status;
}

}  // extern "C"
