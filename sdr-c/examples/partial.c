/* A partial completion: the receiver takes what came of a message, and does not wait for the rest. */
#include <longhaul-sdr.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_LOG = 16, CHUNKS = 16 };
#define TRY(call) do { while ((code = (call)) == SDR_RETRY) {} \
    if (code) { puts(sdr_last_error()); return 1; } } while (0)

static unsigned char source[CHUNKS << CHUNK_LOG], sink[CHUNKS << CHUNK_LOG];

int main(void) {
    int code;
    /* Two queue pairs; mostly they are on two machines, which exchange infos over TCP. */
    struct sdr_dev_attr device = {.num_channels = 1, .log_max_qps = 1};
    struct sdr_context *context = sdr_context_create("127.0.0.1", &device);
    unsigned char secret[32] = "both sides read it from a file";
    TRY(sdr_context_secret_set(context, secret));
    TRY(sdr_context_rtt_set(context, 1000));
    struct sdr_qp_attr attr = {.bitmap_chunk_size_log_bytes = CHUNK_LOG, .max_in_flight_log_bytes = 24,
        .max_log_num_msgs = 4, .mtu = SDR_MTU_1024, .send_enable = 1, .recv_enable = 1, .rate_limit = 1000};
    struct sdr_qp *near = sdr_qp_create(context, &attr), *far = sdr_qp_create(context, &attr);
    size_t size;
    TRY(sdr_qp_info_size_get(near, &size));
    void *near_info = malloc(size), *far_info = malloc(size);
    TRY(sdr_qp_info_get(near, near_info));
    TRY(sdr_qp_info_get(far, far_info));
    TRY(sdr_qp_connect(near, far_info));
    TRY(sdr_qp_connect(far, near_info));
    uint32_t from, to;
    TRY(sdr_mr_lkey_get(sdr_mr_reg(context, source, sizeof source, SDR_ACCESS_REMOTE_WRITE), &from));
    TRY(sdr_mr_lkey_get(sdr_mr_reg(context, sink, sizeof sink, SDR_ACCESS_REMOTE_WRITE), &to));

    /* The first receive that is posted gets the first message that is sent. */
    struct sdr_recv_handle *receive;
    struct sdr_recv_wr wanted = {.max_length = sizeof sink, .lkey = to, .address = (uint64_t)sink};
    TRY(sdr_recv_post(far, &wanted, &receive));

    /* The sender has credit as soon as it was told of the receive. Every chunk but the sixth goes. */
    struct sdr_send_handle *stream;
    TRY(sdr_streaming_send_start(near, &(struct sdr_send_start_wr){.opcode = SDR_WR_WRITE}, &stream));
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) {
        struct sdr_send_continue_wr wr = {.length = 1 << CHUNK_LOG, .lkey = from, .remote_offset = chunk,
            .local_addr = (uint64_t)source + (chunk << CHUNK_LOG)};
        if (chunk != 5) TRY(sdr_streaming_send_continue(stream, &wr));
    }
    TRY(sdr_streaming_send_end(stream));

    /* The bitmap is live: bit i mod 8 of byte i / 8. A chunk may be read as soon as its bit is set. */
    uint8_t *bitmap;
    TRY(sdr_recv_bitmap_get(receive, &bitmap, &size));
    for (long looks = 0; looks < 1000000000; looks++) /* A packet may be lost even here. */
        if (__atomic_load_n(&bitmap[0], __ATOMIC_ACQUIRE) == 0xdf &&
            __atomic_load_n(&bitmap[1], __ATOMIC_ACQUIRE) == 0xff) break;
    printf("bitmap of %zu bytes: %02x %02x\n", size, bitmap[0], bitmap[1]);

    /* Late packets change nothing from here on; SDR_RETRY means that a worker is still inside. */
    TRY(sdr_recv_complete(receive));
    return sdr_qp_destroy(near) || sdr_qp_destroy(far);
}
