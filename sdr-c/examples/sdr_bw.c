/* sdr_bw - measures messages between two hosts, without reliability or by a layer.
 *
 * -a is this host's address, where both meet; -d names an RDMA device, without which the messages go by UDP.
 *
 *   server: SDR_SECRET_FILE=secret sdr_bw -a ADDRESS [options]
 *   client: SDR_SECRET_FILE=secret sdr_bw -a ADDRESS [options] SERVER
 *
 * Both sides take the same options. Without a layer (-S), a message of which nothing more comes for 100 ms is
 * completed as it is.
 */
#define _DEFAULT_SOURCE /* Sockets and clocks, with -std=c11 too. */
#include <longhaul-sdr.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const double PATIENCE = 0.1;

struct options {
    const char *address, *device, *port, *server, *scheme;
    uint32_t size, chunk_log, in_flight, messages, channels, mtu, rate, rtt;
    int validate;
};

struct report {
    uint64_t whole, chunks_lost, bad;
};

static void fail(const char *what) {
    fprintf(stderr, "sdr_bw: %s: %s\n", what, sdr_last_error());
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint32_t log2_up(uint64_t value) {
    uint32_t log = 0;
    while ((uint64_t)1 << log < value) {
        log++;
    }
    return log;
}

/* Out of band: a TCP connection. */
static int meet(const struct options *options) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found = NULL;
    const char *host = options->server ? options->server : options->address;
    if (getaddrinfo(host, options->port, &hints, &found)) {
        fail("not an address");
    }
    int sock = socket(found->ai_family, SOCK_STREAM, 0), one = 1;
    if (sock < 0) {
        fail("socket");
    }
    if (options->server) {
        int tries = 0;
        while (connect(sock, found->ai_addr, found->ai_addrlen)) {
            if (++tries > 100) {
                fail("connect");
            }
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            close(sock);
            sock = socket(found->ai_family, SOCK_STREAM, 0);
        }
    } else {
        setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(sock, found->ai_addr, found->ai_addrlen) || listen(sock, 1)) {
            fail("listen");
        }
        int client = accept(sock, NULL, NULL);
        close(sock);
        sock = client;
    }
    freeaddrinfo(found);
    return sock;
}

static void tell(int sock, const void *bytes, size_t size) {
    if (write(sock, bytes, size) != (ssize_t)size) {
        fail("the connection to the peer");
    }
}

static void hear(int sock, void *bytes, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t part = read(sock, (char *)bytes + got, size - got);
        if (part <= 0) {
            fail("the connection to the peer");
        }
        got += (size_t)part;
    }
}

static struct sdr_qp *make_qp(struct sdr_context *context, const struct options *options, int sock) {
    /* Coded parts are smaller than messages, so they need slots of their own. */
    uint32_t slots_log = log2_up(options->in_flight) + (options->scheme ? 1 : 0);
    struct sdr_qp_attr attr = {
        .bitmap_chunk_size_log_bytes = options->chunk_log,
        .max_in_flight_log_bytes = log2_up(options->size) + slots_log,
        .max_log_num_msgs = slots_log,
        .mtu = (enum sdr_mtu)(log2_up(options->mtu) - 6),
        .send_enable = options->server != NULL,
        .recv_enable = options->server == NULL,
        .rate_limit = options->rate,
    };
    struct sdr_qp *qp = sdr_qp_create(context, &attr);
    size_t size = 0;
    if (!qp || sdr_qp_info_size_get(qp, &size)) {
        fail("making a queue pair");
    }
    char *info = malloc(size);
    if (!info || sdr_qp_info_get(qp, info)) {
        fail("info");
    }
    tell(sock, info, size);
    hear(sock, info, size);
    if (sdr_qp_connect(qp, info)) {
        fail("connecting");
    }
    free(info);
    return qp;
}

static uint8_t pattern(uint64_t message, uint32_t chunk) {
    return (uint8_t)(message * 131 + chunk * 7 + 1);
}

static uint32_t chunks_of(const struct options *options) {
    return (options->size + (1u << options->chunk_log) - 1) >> options->chunk_log;
}

/* Waits until all chunks are there, or nothing more comes. Returns how many are there. */
static uint32_t await(const uint8_t *bitmap, uint32_t chunks) {
    uint32_t there = 0;
    for (double since = seconds(); there < chunks && seconds() - since < PATIENCE;) {
        uint32_t now = 0;
        for (uint32_t byte = 0; byte < (chunks + 7) / 8; byte++) {
            now += (uint32_t)__builtin_popcount(__atomic_load_n(&bitmap[byte], __ATOMIC_ACQUIRE));
        }
        if (now != there) {
            there = now;
            since = seconds();
        }
        sched_yield();
    }
    return there;
}

/* Looks at the chunks that are there: at all without a bitmap. */
static int is_valid(const struct options *options, const uint8_t *bitmap, const uint8_t *buffer, uint64_t message) {
    for (uint32_t at = 0; at < options->size; at++) {
        uint32_t chunk = at >> options->chunk_log;
        if ((!bitmap || bitmap[chunk / 8] >> chunk % 8 & 1) && buffer[at] != pattern(message, chunk)) {
            return 0;
        }
    }
    return 1;
}

static void tell_report(int sock, const struct report *report) {
    tell(sock, report, sizeof *report);
    if (report->bad) {
        fprintf(stderr, "sdr_bw: %llu messages with wrong contents\n", (unsigned long long)report->bad);
        exit(1);
    }
}

static void serve(const struct options *options, struct sdr_qp *qp, uint32_t lkey, uint8_t *memory, int sock) {
    struct sdr_recv_handle **handles = calloc(options->in_flight, sizeof *handles);
    struct report report = {0};
    uint32_t posted = 0, chunks = chunks_of(options);
    for (uint32_t message = 0; message < options->messages; message++) {
        while (posted < options->messages && posted < message + options->in_flight) {
            uint64_t slot = posted % options->in_flight;
            struct sdr_recv_wr wr = {options->size, lkey, (uint64_t)memory + slot * options->size};
            int code = sdr_recv_post(qp, &wr, &handles[slot]);
            if (code == SDR_ERROR) {
                fail("posting a receive");
            }
            if (code == SDR_RETRY) {
                break;
            }
            posted++;
        }
        uint8_t *bitmap, *buffer = memory + (uint64_t)(message % options->in_flight) * options->size;
        size_t bytes;
        struct sdr_recv_handle *handle = handles[message % options->in_flight];
        if (sdr_recv_bitmap_get(handle, &bitmap, &bytes)) {
            fail("the bitmap");
        }
        uint32_t there = await(bitmap, chunks);
        report.bad += options->validate && !is_valid(options, bitmap, buffer, message);
        int code;
        while ((code = sdr_recv_complete(handle)) == SDR_RETRY) {
        }
        if (code) {
            fail("completing");
        }
        report.whole += there == chunks;
        report.chunks_lost += chunks - there;
    }
    free(handles);
    tell_report(sock, &report);
}

/* The same with a layer: every message comes whole. */
static void serve_reliably(const struct options *options, struct sdr_qp *qp, uint8_t *buffer, int sock) {
    struct report report = {0};
    for (uint32_t expected = 0, message = 0; message < options->messages;) {
        int code = SDR_SUCCESS;
        if (expected < options->messages && expected < message + options->in_flight) {
            code = sdr_layer_expect(qp, options->size);
            expected += code == SDR_SUCCESS;
        }
        if (code == SDR_ERROR || sdr_layer_poll(qp)) {
            fail("receiving");
        }
        size_t length = 0;
        while ((code = sdr_layer_recv(qp, buffer, options->size, &length)) == SDR_SUCCESS) {
            report.whole += length == options->size;
            report.bad += options->validate && !is_valid(options, NULL, buffer, message);
            message++;
        }
        if (code == SDR_ERROR) {
            fail("a message");
        }
        sched_yield();
    }
    tell_report(sock, &report);
    /* The peer learns of the last messages, and closes the meeting when it knows. */
    fcntl(sock, F_SETFL, O_NONBLOCK);
    char last;
    for (double start = seconds(); read(sock, &last, 1) < 0 && seconds() - start < 10;) {
        if (sdr_layer_poll(qp)) {
            break;
        }
        sched_yield();
    }
}

static void print(const struct options *options, const struct report *report, double time) {
    double bits = (double)options->size * options->messages * 8;
    double packets = (double)((options->size + options->mtu - 1) / options->mtu) * options->messages;
    printf("%u messages of %u bytes in %.3f s: %.3f Gbit/s, %.3f Mpps\n", options->messages, options->size, time,
           bits / time * 1e-9, packets / time * 1e-6);
    printf("%llu whole, %llu chunks lost%s\n", (unsigned long long)report->whole,
           (unsigned long long)report->chunks_lost, options->validate ? ", contents checked" : "");
}

static void fill(const struct options *options, uint8_t *buffer, uint64_t message) {
    for (uint32_t at = 0; options->validate && at < options->size; at++) {
        buffer[at] = pattern(message, at >> options->chunk_log);
    }
}

/* With a layer. It copies what it sends. */
static void drive_reliably(const struct options *options, struct sdr_qp *qp, uint8_t *buffer, int sock) {
    uint32_t started = 0, completed = 0, *numbers = calloc(options->in_flight, sizeof *numbers);
    double start = seconds();
    while (completed < options->messages) {
        if (started < options->messages && started - completed < options->in_flight) {
            fill(options, buffer, started);
            int code = sdr_layer_send(qp, buffer, options->size, &numbers[started % options->in_flight]);
            if (code == SDR_ERROR) {
                fail("sending");
            }
            started += code == SDR_SUCCESS;
        }
        if (sdr_layer_poll(qp)) {
            fail("the layer");
        }
        while (completed < started &&
               sdr_layer_done(qp, numbers[completed % options->in_flight]) == SDR_SUCCESS) {
            completed++;
        }
        sched_yield();
    }
    struct report report;
    hear(sock, &report, sizeof report);
    print(options, &report, seconds() - start);
    free(numbers);
}

static void drive(const struct options *options, struct sdr_qp *qp, uint32_t lkey, uint8_t *memory, int sock) {
    struct sdr_send_handle **handles = calloc(options->in_flight, sizeof *handles);
    uint32_t started = 0, completed = 0;
    double start = seconds();
    while (completed < options->messages) {
        uint64_t slot = started % options->in_flight;
        if (started < options->messages && started - completed < options->in_flight) {
            uint8_t *buffer = memory + slot * options->size;
            fill(options, buffer, started);
            struct sdr_send_wr wr = {.length = options->size, .lkey = lkey, .local_addr = (uint64_t)buffer};
            int code = sdr_send_post(qp, &wr, &handles[slot]);
            if (code == SDR_ERROR) {
                fail("sending");
            }
            started += code == SDR_SUCCESS;
        }
        int done = 0;
        if (completed < started &&
            sdr_send_poll(handles[completed % options->in_flight], &done, NULL) == SDR_ERROR) {
            fail("polling a send");
        }
        completed += (uint32_t)done;
        if (!done) {
            sched_yield();
        }
    }
    struct report report;
    hear(sock, &report, sizeof report);
    print(options, &report, seconds() - start);
    free(handles);
}

static void usage(void) {
    fprintf(stderr, "usage: sdr_bw -a ADDRESS [-d DEVICE] [-p PORT] [-s BYTES] [-c CHUNK BYTES] [-f IN FLIGHT] [-n MESSAGES]\n"
                    "       [-C CHANNELS] [-m MTU] [-r MBIT/S] [-t RTT IN US]\n"
                    "       [-S none|rto|nack|mds:K,M|xor:K,M] [-v] [SERVER]\n");
    exit(2);
}

static struct options parse(int argc, char **argv) {
    struct options options = {
        .port = "18516", .size = 512 << 10, .chunk_log = 16, .in_flight = 16, .messages = 1000,
        .channels = 1, .mtu = 1024, .rate = 1000, .rtt = 1000,
    };
    for (int option; (option = getopt(argc, argv, "a:d:p:s:c:f:n:C:m:r:t:S:v")) != -1;) {
        uint32_t number = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        switch (option) {
        case 'a': options.address = optarg; break;
        case 'd': options.device = optarg; break;
        case 'p': options.port = optarg; break;
        case 's': options.size = number; break;
        case 'c': options.chunk_log = log2_up(number); break;
        case 'f': options.in_flight = number; break;
        case 'n': options.messages = number; break;
        case 'C': options.channels = number; break;
        case 'm': options.mtu = number; break;
        case 'r': options.rate = number; break;
        case 't': options.rtt = number; break;
        case 'S': options.scheme = strcmp(optarg, "none") ? optarg : NULL; break;
        case 'v': options.validate = 1; break;
        default: usage();
        }
    }
    options.server = argv[optind];
    if (!options.address || !options.size || !options.in_flight || options.mtu < 64) {
        usage();
    }
    return options;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    struct sdr_dev_attr device = {.num_channels = options.channels};
    const char *name = options.device ? options.device : options.address;
    struct sdr_context *context = sdr_context_create(name, &device);
    if (!context || sdr_context_rtt_set(context, options.rtt)) {
        fail(name);
    }
    int sock = meet(&options);
    struct sdr_qp *qp = make_qp(context, &options, sock);
    size_t bytes = (size_t)options.size * options.in_flight;
    uint8_t *memory = calloc(1, bytes);
    uint32_t lkey = 0;
    if (!memory || sdr_mr_lkey_get(sdr_mr_reg(context, memory, bytes, SDR_ACCESS_REMOTE_WRITE), &lkey)) {
        fail("memory");
    }
    if (options.scheme && sdr_layer_start(qp, options.scheme)) {
        fail(options.scheme);
    }
    if (options.scheme && options.server) {
        drive_reliably(&options, qp, memory, sock);
    } else if (options.scheme) {
        serve_reliably(&options, qp, memory, sock);
    } else if (options.server) {
        drive(&options, qp, lkey, memory, sock);
    } else {
        serve(&options, qp, lkey, memory, sock);
    }
    return sdr_qp_destroy(qp);
}
