/* What C programs get wrong, between two queue pairs of one process: each is SDR_ERROR, and nothing else breaks.
 * Exits with 0 if all of it holds. */
#define _DEFAULT_SOURCE /* Clocks and processes, with -std=c11 too. */
#include "check.h"
#include "longhaul-sdr.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETRY(call)                                                                                   \
    do {                                                                                              \
        while ((code = (call)) == SDR_RETRY) {                                                        \
            sched_yield();                                                                            \
        }                                                                                             \
    } while (0)

enum { BYTES = 64 << 10, CHUNK_LOG = 13, MTU = 64 };

static const uint8_t secret[32] = "thirty-two bytes that both know";
static uint8_t source[BYTES], sink[BYTES];
static int code;

struct pair {
    struct sdr_context *context;
    struct sdr_qp *near, *far;
    struct sdr_mr *from, *to;
    uint32_t source_key, sink_key;
};

static struct sdr_context *open_device(uint32_t log_qps) {
    struct sdr_dev_attr device = {1, log_qps};
    struct sdr_context *context = sdr_context_create("127.0.0.1", &device);
    CHECK(context && sdr_context_rtt_set(context, 1000) == SDR_SUCCESS);
    return context;
}

static struct sdr_qp *make_qp(struct sdr_context *context, int sends, int receives) {
    struct sdr_qp_attr attr = {CHUNK_LOG, 18, 2, SDR_MTU_64, (uint8_t)sends, (uint8_t)receives, 1000};
    struct sdr_qp *qp = sdr_qp_create(context, &attr);
    CHECK(qp);
    return qp;
}

static void join(struct sdr_qp *near, struct sdr_qp *far) {
    char near_info[256], far_info[256];
    size_t size;
    CHECK(sdr_qp_info_size_get(near, &size) == SDR_SUCCESS && size == sizeof near_info);
    CHECK(sdr_qp_info_get(near, near_info) == SDR_SUCCESS && sdr_qp_info_get(far, far_info) == SDR_SUCCESS);
    CHECK(sdr_qp_connect(near, far_info) == SDR_SUCCESS && sdr_qp_connect(far, near_info) == SDR_SUCCESS);
}

static struct pair connected(void) {
    struct pair pair = {.context = open_device(1)};
    CHECK(sdr_context_secret_set(pair.context, secret) == SDR_SUCCESS);
    pair.near = make_qp(pair.context, 1, 1);
    pair.far = make_qp(pair.context, 1, 1);
    join(pair.near, pair.far);
    pair.from = sdr_mr_reg(pair.context, source, sizeof source, SDR_ACCESS_REMOTE_WRITE);
    pair.to = sdr_mr_reg(pair.context, sink, sizeof sink, SDR_ACCESS_REMOTE_WRITE);
    CHECK(sdr_mr_lkey_get(pair.from, &pair.source_key) == SDR_SUCCESS);
    CHECK(sdr_mr_lkey_get(pair.to, &pair.sink_key) == SDR_SUCCESS);
    return pair;
}

static void closed(struct pair *pair) {
    CHECK(sdr_qp_destroy(pair->near) == SDR_SUCCESS && sdr_qp_destroy(pair->far) == SDR_SUCCESS);
    CHECK(sdr_mr_dereg(pair->from) == SDR_SUCCESS && sdr_mr_dereg(pair->to) == SDR_SUCCESS);
    CHECK(sdr_context_destroy(pair->context) == SDR_SUCCESS);
}

static struct sdr_recv_handle *post(struct pair *pair, uint32_t bytes) {
    struct sdr_recv_wr wr = {bytes, pair->sink_key, (uint64_t)sink};
    struct sdr_recv_handle *handle = NULL;
    RETRY(sdr_recv_post(pair->far, &wr, &handle));
    CHECK(code == SDR_SUCCESS);
    return handle;
}

static struct sdr_send_handle *start(struct pair *pair, enum sdr_wr_opcode opcode) {
    struct sdr_send_start_wr wr = {opcode, 7};
    struct sdr_send_handle *handle = NULL;
    RETRY(sdr_streaming_send_start(pair->near, &wr, &handle));
    CHECK(code == SDR_SUCCESS);
    return handle;
}

static void complete(struct sdr_recv_handle *handle) {
    RETRY(sdr_recv_complete(handle));
    CHECK(code == SDR_SUCCESS);
}

/* The last chunk is shorter: bits beyond the buffer are 0, in as many words as a full chunk has. */
static void expand_a_short_chunk(struct pair *pair) {
    uint32_t bytes = (1 << CHUNK_LOG) + 3 * MTU;
    struct sdr_recv_handle *handle = post(pair, bytes);
    struct sdr_send_wr wr = {SDR_WR_WRITE, 0, bytes, pair->source_key, (uint64_t)source, 0};
    struct sdr_send_handle *sent;
    RETRY(sdr_send_post(pair->near, &wr, &sent));
    CHECK(code == SDR_SUCCESS);
    uint64_t packets[2] = {0};
    for (long looks = 0; packets[0] != 7 && looks < 100000000; looks++) {
        packets[0] = packets[1] = UINT64_MAX;
        CHECK(sdr_recv_bitmap_chunk_expand(handle, 1, packets) == SDR_SUCCESS);
    }
    CHECK(packets[0] == 7 && packets[1] == 0);
    CHECK(sdr_recv_bitmap_chunk_expand(handle, 1, NULL) == SDR_ERROR);
    int done;
    RETRY(sdr_send_poll(sent, &done, NULL));
    CHECK(code == SDR_SUCCESS && done);
    complete(handle);
}

/* A stream whose immediate is not whole has ended, but its memory is in use until all has left. */
static void end_without_the_immediate(struct pair *pair) {
    struct sdr_recv_handle *handle = post(pair, BYTES);
    struct sdr_send_handle *stream = start(pair, SDR_WR_WRITE_WITH_IMM);
    struct sdr_send_continue_wr wr = {MTU, (uint64_t)source, pair->source_key, 0};
    for (int times = 0; times < 3; times++) { /* Repairs use the same memory. */
        RETRY(sdr_streaming_send_continue(stream, &wr));
        CHECK(code == SDR_SUCCESS);
    }
    int done = 0;
    CHECK(sdr_send_poll(stream, &done, NULL) == SDR_RETRY && !done);
    CHECK(sdr_streaming_send_end(stream) == SDR_ERROR && sdr_streaming_send_end(stream) == SDR_ERROR);
    CHECK(sdr_streaming_send_continue(stream, &wr) == SDR_ERROR);
    CHECK(sdr_mr_dereg(pair->from) == SDR_ERROR);
    RETRY(sdr_send_poll(stream, &done, NULL));
    CHECK(code == SDR_SUCCESS && done && sdr_send_poll(stream, &done, NULL) == SDR_ERROR);
    complete(handle);
}

static void wrong_arguments(struct pair *pair) {
    struct sdr_recv_handle *handle = post(pair, BYTES);
    char word[8] = "a word", got[8];
    size_t length = 0;
    CHECK(sdr_ctrl_send(pair->near, word, sizeof word) == SDR_SUCCESS);
    do {
        CHECK(sdr_ctrl_recv(pair->far, got, sizeof got, NULL) == SDR_ERROR); /* It takes nothing. */
    } while (sdr_ctrl_recv(pair->far, got, sizeof got, &length) == SDR_RETRY);
    CHECK(length == sizeof word && !memcmp(word, got, length));
    CHECK(sdr_recv_complete((struct sdr_recv_handle *)pair->near) == SDR_ERROR);
    CHECK(sdr_recv_complete((struct sdr_recv_handle *)&length) == SDR_ERROR);
    CHECK(sdr_recv_complete((struct sdr_recv_handle *)UINTPTR_MAX) == SDR_ERROR);
    CHECK(sdr_recv_complete(NULL) == SDR_ERROR && sdr_send_poll(NULL, NULL, NULL) == SDR_ERROR);
    complete(handle);
}

/* The peer goes while a stream is open: polling it says so. */
static void poll_a_stream_of_a_peer_that_left(void) {
    struct pair pair = connected();
    struct sdr_recv_handle *handle = post(&pair, BYTES);
    struct sdr_send_handle *stream = start(&pair, SDR_WR_WRITE);
    int done;
    CHECK(sdr_qp_destroy(pair.far) == SDR_SUCCESS);
    RETRY(sdr_send_poll(stream, &done, NULL));
    CHECK(code == SDR_ERROR && !done && sdr_streaming_send_end(stream) == SDR_ERROR);
    complete(handle);
    pair.far = make_qp(pair.context, 1, 1);
    closed(&pair);
}

static struct sdr_qp *victim;
static int destroyed;

static void *destroy(void *unused) {
    (void)unused;
    if (sdr_qp_destroy(victim) == SDR_SUCCESS) {
        __atomic_fetch_add(&destroyed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Threads that destroy the same queue pair: one does, and the other queue pair still counts. */
static void destroy_from_several_threads(void) {
    struct sdr_context *context = open_device(1);
    struct sdr_qp *other = make_qp(context, 1, 1);
    for (int round = 0; round < 100; round++) {
        pthread_t threads[4];
        victim = make_qp(context, 1, 1);
        destroyed = 0;
        for (int at = 0; at < 4; at++) {
            CHECK(pthread_create(&threads[at], NULL, destroy, NULL) == 0);
        }
        for (int at = 0; at < 4; at++) {
            CHECK(pthread_join(threads[at], NULL) == 0);
        }
        CHECK(destroyed == 1 && sdr_context_destroy(context) == SDR_ERROR);
    }
    CHECK(sdr_qp_destroy(other) == SDR_SUCCESS && sdr_context_destroy(context) == SDR_SUCCESS);
}

/* A device that closes takes its memory along. One without a secret may be given one later. */
static void close_and_open(void) {
    struct sdr_context *context = open_device(1);
    struct sdr_mr *region = sdr_mr_reg(context, sink, sizeof sink, SDR_ACCESS_REMOTE_WRITE);
    struct sdr_qp *near = make_qp(context, 1, 0), *far = make_qp(context, 0, 1);
    uint32_t key;
    char info[256];
    CHECK(sdr_qp_info_get(far, info) == SDR_SUCCESS && sdr_qp_connect(near, info) == SDR_ERROR);
    CHECK(sdr_context_secret_set(context, secret) == SDR_SUCCESS);
    join(near, far);
    /* Layers take queue pairs from the first message on. */
    CHECK(sdr_mr_lkey_get(region, &key) == SDR_SUCCESS);
    struct sdr_recv_wr wr = {BYTES, key, (uint64_t)sink};
    struct sdr_recv_handle *handle;
    CHECK(sdr_recv_post(far, &wr, &handle) == SDR_SUCCESS && sdr_layer_start(far, "nack") == SDR_ERROR);
    CHECK(sdr_layer_start(near, "nack") == SDR_SUCCESS && sdr_ctrl_send(near, info, 1) == SDR_ERROR);
    complete(handle);
    CHECK(sdr_qp_destroy(near) == SDR_SUCCESS && sdr_qp_destroy(far) == SDR_SUCCESS);
    near = make_qp(context, 1, 0);
    far = make_qp(context, 0, 1);
    join(near, far);
    CHECK(sdr_layer_start(far, "nack") == SDR_SUCCESS);
    CHECK(sdr_layer_expect(far, SIZE_MAX) == SDR_ERROR && sdr_layer_expect(far, 0) == SDR_ERROR);
    CHECK(sdr_qp_destroy(near) == SDR_SUCCESS && sdr_qp_destroy(far) == SDR_SUCCESS);
    CHECK(sdr_context_destroy(context) == SDR_SUCCESS);
    CHECK(sdr_mr_lkey_get(region, &key) == SDR_ERROR && sdr_mr_dereg(region) == SDR_ERROR);
}

/* A child has none of its parent's threads. Its parent's handles are stale there, and it may open its own. */
static void fork_with_handles(void) {
    struct pair pair = connected();
    struct sdr_recv_handle *handle = post(&pair, BYTES);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        struct pair own = connected();
        CHECK(sdr_recv_complete(handle) == SDR_ERROR && sdr_qp_destroy(pair.near) == SDR_ERROR);
        CHECK(sdr_mr_dereg(pair.from) == SDR_ERROR && sdr_context_destroy(pair.context) == SDR_ERROR);
        expand_a_short_chunk(&own);
        closed(&own);
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    complete(handle);
    closed(&pair);
}

int main(void) {
    alarm(100); /* Ends a test that hangs. */
    struct pair pair = connected();
    expand_a_short_chunk(&pair);
    end_without_the_immediate(&pair);
    wrong_arguments(&pair);
    closed(&pair);
    poll_a_stream_of_a_peer_that_left();
    destroy_from_several_threads();
    close_and_open();
    fork_with_handles();
    puts("done");
    return 0;
}
