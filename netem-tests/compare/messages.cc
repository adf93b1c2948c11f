// Sender and receiver of messages over SRT (-DWITH_SRT -lsrt) or UDT (-ludt), one connection, whole messages in any order.
//
//   messages-srt receive PORT MTU
//   messages-srt send ADDRESS PORT MTU SIZE OUTSTANDING CONNECTIONS TIME_MS COUNT PATIENCE_MS VERIFY
//
// What they say on standard output, and what stands in front of a message, is netem-tests/compare/src/job.rs's.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifdef WITH_SRT
#include <srt/srt.h>
#else
#include <udt.h>
#endif

namespace {

// Bytes that sender and receiver hold each: many times any cell's rate x round-trip time, and room for several of the longest messages.
constexpr int kBuffer = 128 << 20;
// Packets under way.
constexpr int kWindow = 100000;
constexpr int kSocketBuffer = 32 << 20;
// Longest message taken.
constexpr int kLongest = (64 << 20) + 16;
constexpr uint64_t kChecked = 1ull << 63;
constexpr uint64_t kWrong = ~0ull;

[[noreturn]] void fail(const char* what) {
#ifdef WITH_SRT
  std::fprintf(stderr, "%s: %s\n", what, srt_getlasterror_str());
#else
  std::fprintf(stderr, "%s: %s\n", what, UDT::getlasterror().getErrorMessage());
#endif
  std::_Exit(1);
}

// The two libraries' calls under one name each.
#ifdef WITH_SRT
using Sock = SRTSOCKET;

void option(Sock s, SRT_SOCKOPT name, int value) {
  if (srt_setsockflag(s, name, &value, sizeof value) == SRT_ERROR) fail("option");
}

Sock make(int mtu) {
  Sock s = srt_create_socket();
  if (s == SRT_INVALID_SOCK) fail("socket");
  SRT_TRANSTYPE type = SRTT_FILE;
  if (srt_setsockflag(s, SRTO_TRANSTYPE, &type, sizeof type) == SRT_ERROR) fail("transtype");
  bool yes = true;
  if (srt_setsockflag(s, SRTO_MESSAGEAPI, &yes, sizeof yes) == SRT_ERROR) fail("messageapi");
  option(s, SRTO_MSS, mtu > 1500 ? 1500 : mtu);  // the library's most
  option(s, SRTO_FC, kWindow);
  option(s, SRTO_SNDBUF, kBuffer);
  option(s, SRTO_RCVBUF, kBuffer);
  option(s, SRTO_UDP_SNDBUF, kSocketBuffer);
  option(s, SRTO_UDP_RCVBUF, kSocketBuffer);
  return s;
}
bool bind_to(Sock s, sockaddr* a, int n) { return srt_bind(s, a, n) != SRT_ERROR && srt_listen(s, 8) != SRT_ERROR; }
Sock accept_on(Sock s) { return srt_accept(s, nullptr, nullptr); }
bool connect_to(Sock s, sockaddr* a, int n) { return srt_connect(s, a, n) != SRT_ERROR; }
int put(Sock s, const char* p, int n) { return srt_sendmsg(s, p, n, -1, 0); }
int take(Sock s, char* p, int n) { return srt_recvmsg(s, p, n); }
bool valid(Sock s) { return s != SRT_INVALID_SOCK; }
void startup() { srt_startup(); srt_setloglevel(2); }
#else
using Sock = UDTSOCKET;

void option(Sock s, UDT::SOCKOPT name, int value) {
  if (UDT::setsockopt(s, 0, name, &value, sizeof value) == UDT::ERROR) fail("option");
}

Sock make(int mtu) {
  Sock s = UDT::socket(AF_INET, SOCK_DGRAM, 0);
  if (s == UDT::INVALID_SOCK) fail("socket");
  option(s, UDT_MSS, mtu);
  option(s, UDT_FC, kWindow);
  option(s, UDT_SNDBUF, kBuffer);
  option(s, UDT_RCVBUF, kBuffer);
  option(s, UDP_SNDBUF, kSocketBuffer);
  option(s, UDP_RCVBUF, kSocketBuffer);
  return s;
}
bool bind_to(Sock s, sockaddr* a, int n) { return UDT::bind(s, a, n) != UDT::ERROR && UDT::listen(s, 8) != UDT::ERROR; }
Sock accept_on(Sock s) {
  sockaddr_storage from;
  int len = sizeof from;
  return UDT::accept(s, reinterpret_cast<sockaddr*>(&from), &len);
}
bool connect_to(Sock s, sockaddr* a, int n) { return UDT::connect(s, a, n) != UDT::ERROR; }
int put(Sock s, const char* p, int n) { return UDT::sendmsg(s, p, n, -1, false); }
int take(Sock s, char* p, int n) { return UDT::recvmsg(s, p, n); }
bool valid(Sock s) { return s != UDT::INVALID_SOCK; }
void startup() { UDT::startup(); }
#endif

uint64_t next(uint64_t word) {
  word += 0x9e3779b97f4a7c15ull;
  return word << 5 | word >> 59;
}

// The contents that soft_nic::fill writes (little-endian machines).
void fill(uint64_t key, char* bytes, size_t len) {
  for (uint64_t word = key; len > 0; word = next(word)) {
    size_t part = len < 8 ? len : 8;
    std::memcpy(bytes, &word, part);
    bytes += part;
    len -= part;
  }
}

bool holds(uint64_t key, const char* bytes, size_t len) {
  bool same = true;
  for (uint64_t word = key; len > 0; word = next(word)) {
    size_t part = len < 8 ? len : 8;
    same &= std::memcmp(bytes, &word, part) == 0;
    bytes += part;
    len -= part;
  }
  return same;
}

void say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

// The one who measures lets go by closing our standard input.
void wait_for_release() {
  char c;
  while (read(0, &c, 1) > 0) {
  }
}

sockaddr_in address(const char* host, const char* port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  inet_pton(AF_INET, host, &a.sin_addr);
  return a;
}

void serve(Sock s) {
  std::vector<char> message(kLongest);
  for (;;) {
    int len = take(s, message.data(), kLongest);
    if (len < 16) return;
    uint64_t body, number;
    std::memcpy(&body, message.data(), 8);
    std::memcpy(&number, message.data() + 8, 8);
    bool right = body == static_cast<uint64_t>(len) - 16 &&
                 (!(number & kChecked) || holds(number, message.data() + 16, body));
    uint64_t answer = right ? number & ~kChecked : kWrong;
    if (put(s, reinterpret_cast<char*>(&answer), 8) != 8) return;
  }
}

int receive(char** argv) {
  Sock listener = make(std::atoi(argv[1]));
  sockaddr_in at = address("0.0.0.0", argv[0]);
  if (!bind_to(listener, reinterpret_cast<sockaddr*>(&at), sizeof at)) fail("listen");
  say("ready");
  std::thread([listener] {
    for (Sock s; valid(s = accept_on(listener));) std::thread(serve, s).detach();
  }).detach();
  wait_for_release();
  std::_Exit(0);
}

using Clock = std::chrono::steady_clock;

struct Sent {
  int64_t posted, confirmed;  // ns from the start; -1: not confirmed
};

struct Client {
  uint64_t size, outstanding, count;
  int64_t time, patience;  // ns
  bool verify;
  Sock socket;
  Clock::time_point start;
  std::mutex mutex;
  std::condition_variable to_write;
  std::deque<uint64_t> queue;
  std::vector<Sent> sent;
  uint64_t confirmed = 0, wrong = 0;

  int64_t now() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count(); }

  // The time of a message runs from here, however long the writer is busy with those before. The mutex is held.
  void post() {
    int64_t at = now();
    if (at >= time || sent.size() >= count) return;
    queue.push_back(sent.size());
    sent.push_back({at, -1});
    to_write.notify_one();
  }

  void write() {
    std::vector<char> message(size + 16);
    for (;;) {
      uint64_t number;
      {
        std::unique_lock<std::mutex> lock(mutex);
        to_write.wait(lock, [this] { return !queue.empty(); });
        number = queue.front();
        queue.pop_front();
      }
      if (verify) {
        number |= kChecked;
        fill(number, message.data() + 16, size);
      }
      std::memcpy(message.data(), &size, 8);
      std::memcpy(message.data() + 8, &number, 8);
      if (put(socket, message.data(), static_cast<int>(message.size())) != static_cast<int>(message.size())) fail("send");
    }
  }

  void read() {
    for (;;) {
      uint64_t number;
      if (take(socket, reinterpret_cast<char*>(&number), 8) != 8) fail("receive");
      std::lock_guard<std::mutex> lock(mutex);
      if (number < sent.size() && sent[number].confirmed < 0) {
        sent[number].confirmed = now();
        ++confirmed;
      } else {
        ++wrong;
      }
      post();
    }
  }

  bool over() {
    std::lock_guard<std::mutex> lock(mutex);
    int64_t at = now();
    bool posting = at < time && sent.size() < count;
    return (!posting && confirmed == sent.size()) || at >= time + patience || wrong > 0;
  }
};

int send(char** argv) {
  static Client c;
  c.size = std::strtoull(argv[3], nullptr, 10);
  c.outstanding = std::strtoull(argv[4], nullptr, 10);
  c.time = std::strtoll(argv[6], nullptr, 10) * 1000000;
  c.count = std::strtoull(argv[7], nullptr, 10);
  c.patience = std::strtoll(argv[8], nullptr, 10) * 1000000;
  c.verify = std::atoi(argv[9]) != 0;
  c.socket = make(std::atoi(argv[2]));
  sockaddr_in to = address(argv[0], argv[1]);
  if (!connect_to(c.socket, reinterpret_cast<sockaddr*>(&to), sizeof to)) fail("connect");
  say("begin");
  c.start = Clock::now();
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    for (uint64_t i = 0; i < c.outstanding; ++i) c.post();
  }
  std::thread([] { c.write(); }).detach();
  std::thread([] { c.read(); }).detach();
  while (!c.over()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  say("done");
  {
    std::lock_guard<std::mutex> lock(c.mutex);
    for (const Sent& m : c.sent) {
      if (m.confirmed < 0) {
        std::printf("%lld -\n", static_cast<long long>(m.posted));
      } else {
        std::printf("%lld %lld\n", static_cast<long long>(m.posted), static_cast<long long>(m.confirmed));
      }
    }
    std::printf("wrong %llu\n", static_cast<unsigned long long>(c.wrong));
    std::fflush(stdout);
  }
  wait_for_release();
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  startup();
  if (argc == 4 && std::string(argv[1]) == "receive") return receive(argv + 2);
  if (argc == 12 && std::string(argv[1]) == "send") return send(argv + 2);
  std::fprintf(stderr, "see the head of messages.cc\n");
  return 2;
}
