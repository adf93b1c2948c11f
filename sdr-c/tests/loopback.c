/* Two processes over loopback on the published calls: one-shot and streaming sends, immediates, partial
 * completion, misuse. The parent receives, the child sends. Exits with 0 if all of it holds. */
#define _DEFAULT_SOURCE /* Clocks and sockets, with -std=c11 too. */
#include "check.h"
#include "longhaul-sdr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 256 << 10, CHUNK_LOG = 14, MESSAGES = 40 };

static uint8_t memory[BYTES];
static struct sdr_mr *region;

static struct sdr_context *open_device(void) {
    struct sdr_dev_attr attr = {.num_channels = 2, .log_max_qps = 1};
    static const uint8_t secret[32] = "thirty-two bytes that both know";
#ifdef SDR_VERBS
    /* A name that is no address is a device's, which is looked for once a queue pair is wanted. */
    struct sdr_qp_attr any = {.bitmap_chunk_size_log_bytes = CHUNK_LOG, .max_in_flight_log_bytes = 22,
                              .max_log_num_msgs = 4, .mtu = SDR_MTU_1024, .send_enable = 1, .recv_enable = 1};
    struct sdr_context *absent = sdr_context_create("not a device", &attr);
    CHECK(absent != NULL && sdr_qp_create(absent, &any) == NULL);
    CHECK(sdr_context_destroy(absent) == SDR_SUCCESS);
#else
    CHECK(sdr_context_create("not an address", &attr) == NULL);
#endif
    CHECK(sdr_context_create("", &attr) == NULL);
    CHECK(sdr_context_create(NULL, &attr) == NULL);
    struct sdr_context *context = sdr_context_create("127.0.0.1", &attr);
    CHECK(context != NULL);
    CHECK(sdr_context_secret_set(context, secret) == SDR_SUCCESS);
    CHECK(sdr_context_rtt_set(context, 2000) == SDR_SUCCESS);
    return context;
}

static struct sdr_qp *connect_qp(struct sdr_context *context, int other) {
    struct sdr_qp_attr attr = {
        .bitmap_chunk_size_log_bytes = CHUNK_LOG,
        .max_in_flight_log_bytes = 22,
        .max_log_num_msgs = 4,
        .mtu = SDR_MTU_1024,
        .send_enable = 1,
        .recv_enable = 1,
        .rate_limit = 2000,
    };
    struct sdr_qp *qp = sdr_qp_create(context, &attr);
    CHECK(qp != NULL);
    size_t size = 0;
    CHECK(sdr_qp_info_size_get(qp, &size) == SDR_SUCCESS);
    char *info = calloc(1, size);
    CHECK(info != NULL && sdr_qp_info_get(qp, info) == SDR_SUCCESS);
    CHECK(write(other, info, size) == (ssize_t)size);
    size_t got = 0;
    while (got < size) {
        ssize_t part = read(other, info + got, size - got);
        CHECK(part > 0);
        got += (size_t)part;
    }
    CHECK(sdr_qp_connect(qp, info) == SDR_SUCCESS);
    CHECK(sdr_qp_connect(qp, info) == SDR_ERROR);
    free(info);
    return qp;
}

static uint32_t key_of(struct sdr_mr *mr) {
    uint32_t lkey = 0;
    CHECK(sdr_mr_lkey_get(mr, &lkey) == SDR_SUCCESS);
    return lkey;
}

static int all_set(const uint8_t *bitmap, size_t chunks) {
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        if (!(__atomic_load_n(&bitmap[chunk / 8], __ATOMIC_ACQUIRE) >> chunk % 8 & 1)) {
            return 0;
        }
    }
    return 1;
}

static void acknowledge(struct sdr_qp *qp, uint32_t number) {
    int code = sdr_ctrl_send(qp, &number, sizeof number);
    CHECK(code != SDR_ERROR);
}

static void receiver(int other) {
    struct sdr_context *context = open_device();
    struct sdr_qp *qp = connect_qp(context, other);
    region = sdr_mr_reg(context, memory, sizeof memory, SDR_ACCESS_REMOTE_WRITE);
    CHECK(region != NULL);
    struct sdr_recv_wr wr = {.max_length = BYTES, .lkey = key_of(region), .address = (uint64_t)memory};
    struct sdr_recv_handle *handle = NULL;
    for (uint32_t number = 0; number < MESSAGES; number++) {
        memset(memory, 0, sizeof memory);
        int code;
        while ((code = sdr_recv_post(qp, &wr, &handle)) == SDR_RETRY) {
        }
        CHECK(code == SDR_SUCCESS);
        struct sdr_recv_handle *second = NULL;
        CHECK(sdr_recv_post(qp, &wr, &second) == SDR_ERROR); /* The buffer is in use. */
        CHECK(sdr_mr_dereg(region) == SDR_ERROR);
        uint32_t imm = 0;
        while ((code = sdr_recv_imm_get(handle, &imm)) == SDR_RETRY) {
        }
        CHECK(code == SDR_SUCCESS && imm == (number ^ 0xabcd0123));
        uint8_t *bitmap = NULL;
        size_t bytes = 0;
        CHECK(sdr_recv_bitmap_get(handle, &bitmap, &bytes) == SDR_SUCCESS && bytes == BYTES >> CHUNK_LOG >> 3);
        if (number % 8 != 7) { /* Every eighth message is completed early. */
            while (!all_set(bitmap, bytes * 8)) {
            }
            uint64_t packets = 0;
            CHECK(sdr_recv_bitmap_chunk_expand(handle, 3, &packets) == SDR_SUCCESS && packets == 0xffff);
            CHECK(sdr_recv_bitmap_chunk_expand(handle, 16, &packets) == SDR_ERROR);
        }
        while ((code = sdr_recv_complete(handle)) == SDR_RETRY) {
        }
        CHECK(code == SDR_SUCCESS);
        CHECK(sdr_recv_complete(handle) == SDR_ERROR && sdr_recv_imm_get(handle, &imm) == SDR_ERROR);
        for (size_t at = 0; number % 8 != 7 && at < BYTES; at++) {
            CHECK(memory[at] == (uint8_t)(number + 1));
        }
        acknowledge(qp, number);
    }
    /* The last word may be lost: repeat it until the sender is gone. */
    uint32_t last = MESSAGES - 1, unused;
    size_t length;
    while (sdr_ctrl_recv(qp, &unused, sizeof unused, &length) != SDR_ERROR) {
        (void)sdr_ctrl_send(qp, &last, sizeof last);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK(sdr_recv_post(qp, &wr, &handle) == SDR_ERROR);
    CHECK(sdr_context_destroy(context) == SDR_ERROR); /* It has a queue pair. */
    CHECK(sdr_qp_destroy(qp) == SDR_SUCCESS && sdr_qp_destroy(qp) == SDR_ERROR);
    CHECK(sdr_mr_dereg(region) == SDR_SUCCESS && sdr_mr_dereg(region) == SDR_ERROR);
    CHECK(sdr_context_destroy(context) == SDR_SUCCESS);
    CHECK(sdr_context_destroy((struct sdr_context *)memory) == SDR_ERROR);
    CHECK(sdr_context_destroy(NULL) == SDR_ERROR);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Sends a message as chunks, backwards, and again until it is acknowledged: the kernel may drop packets. */
static void stream(struct sdr_qp *qp, uint32_t number, uint32_t *acknowledged) {
    struct sdr_send_start_wr start = {.opcode = SDR_WR_WRITE_WITH_IMM, .imm_value = number ^ 0xabcd0123};
    struct sdr_send_handle *handle = NULL;
    int code;
    while ((code = sdr_streaming_send_start(qp, &start, &handle)) == SDR_RETRY) {
    }
    CHECK(code == SDR_SUCCESS);
    double sent = 0;
    while (*acknowledged <= number) {
        for (int chunk = (BYTES >> CHUNK_LOG) - 1; seconds() - sent > 0.2 && chunk >= 0; chunk--) {
            struct sdr_send_continue_wr wr = {
                .length = 1 << CHUNK_LOG,
                .local_addr = (uint64_t)memory + ((uint64_t)chunk << CHUNK_LOG),
                .lkey = key_of(region),
                .remote_offset = (uint64_t)chunk,
            };
            while ((code = sdr_streaming_send_continue(handle, &wr)) == SDR_RETRY) {
            }
            CHECK(code == SDR_SUCCESS);
            if (chunk == 0) {
                sent = seconds();
            }
        }
        uint32_t word;
        size_t length;
        while ((code = sdr_ctrl_recv(qp, &word, sizeof word, &length)) == SDR_SUCCESS && length == sizeof word) {
            *acknowledged = word + 1 > *acknowledged ? word + 1 : *acknowledged;
        }
        CHECK(code != SDR_ERROR);
    }
    CHECK(sdr_streaming_send_end(handle) == SDR_SUCCESS && sdr_streaming_send_end(handle) == SDR_ERROR);
    int done = 0;
    struct sdr_send_status status;
    while ((code = sdr_send_poll(handle, &done, &status)) == SDR_RETRY) {
        CHECK(!done);
    }
    CHECK(code == SDR_SUCCESS && done && sdr_send_poll(handle, &done, &status) == SDR_ERROR);
}

static void sender(int other) {
    struct sdr_context *context = open_device();
    struct sdr_qp *qp = connect_qp(context, other);
    region = sdr_mr_reg(context, memory, sizeof memory, SDR_ACCESS_REMOTE_WRITE);
    CHECK(region != NULL);
    struct sdr_send_handle *handle = NULL;
    struct sdr_send_wr wr = {.length = BYTES, .lkey = 77, .local_addr = (uint64_t)memory};
    CHECK(sdr_send_post(qp, &wr, &handle) == SDR_ERROR); /* No such key. */
    wr.lkey = key_of(region);
    wr.length = BYTES + 1;
    CHECK(sdr_send_post(qp, &wr, &handle) == SDR_ERROR); /* Beyond the registered memory. */
    wr.length = 1024;
    wr.opcode = SDR_WR_WRITE_WITH_IMM;
    CHECK(sdr_send_post(qp, &wr, &handle) == SDR_ERROR); /* Too short for an immediate. */
    CHECK(sdr_send_post(qp, &wr, NULL) == SDR_ERROR && sdr_send_post(qp, NULL, &handle) == SDR_ERROR);
    CHECK(sdr_send_post((struct sdr_qp *)context, &wr, &handle) == SDR_ERROR); /* Of another type. */
    CHECK(sdr_layer_start(qp, "rto") == SDR_ERROR); /* It is connected in both directions. */
    CHECK(sdr_layer_start(qp, "mds:8") == SDR_ERROR && sdr_layer_start(qp, NULL) == SDR_ERROR);
    CHECK(sdr_layer_poll(qp) == SDR_ERROR && sdr_layer_done(qp, 0) == SDR_ERROR); /* No layer. */
    CHECK(sdr_layer_expect(qp, 1) == SDR_ERROR && sdr_layer_send(qp, memory, 1, NULL) == SDR_ERROR);
    uint32_t acknowledged = 0;
    for (uint32_t number = 0; number < MESSAGES; number++) {
        memset(memory, (uint8_t)(number + 1), sizeof memory);
        stream(qp, number, &acknowledged);
    }
    CHECK(sdr_qp_destroy(qp) == SDR_SUCCESS);
    CHECK(sdr_mr_dereg(region) == SDR_SUCCESS && sdr_context_destroy(context) == SDR_SUCCESS);
}

int main(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    alarm(100); /* Ends a test that hangs. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(100);
        sender(pair[1]);
        return 0;
    }
    receiver(pair[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("done");
    return 0;
}
