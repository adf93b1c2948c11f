/* A program closes descriptors that are not its own, as some do when they become daemons: its queue pairs end in an
 * error, and their threads do not keep a processor busy meanwhile. */
#define _DEFAULT_SOURCE /* Sockets, with -std=c11 too. */
#include "check.h"
#include "longhaul-sdr.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A peer that is silent is given up after ten seconds, by each of both threads. */
enum { MOST_CPU_SECONDS = 5, DESCRIPTORS = 1024 };

int main(void) {
    struct sdr_dev_attr device = {.num_channels = 2, .log_max_qps = 1};
    static const uint8_t secret[32] = "thirty-two bytes that both know";
    struct sdr_context *context = sdr_context_create("127.0.0.1", &device);
    CHECK(context != NULL && sdr_context_secret_set(context, secret) == SDR_SUCCESS);
    struct sdr_qp_attr attr = {.bitmap_chunk_size_log_bytes = 14, .max_in_flight_log_bytes = 22,
                               .max_log_num_msgs = 4, .mtu = SDR_MTU_1024, .send_enable = 1, .recv_enable = 1};
    struct sdr_qp *pairs[2];
    void *infos[2];
    for (int at = 0; at < 2; at++) {
        size_t size = 0;
        pairs[at] = sdr_qp_create(context, &attr);
        CHECK(pairs[at] != NULL && sdr_qp_info_size_get(pairs[at], &size) == SDR_SUCCESS);
        infos[at] = malloc(size);
        CHECK(infos[at] != NULL && sdr_qp_info_get(pairs[at], infos[at]) == SDR_SUCCESS);
    }
    for (int at = 0; at < 2; at++) CHECK(sdr_qp_connect(pairs[at], infos[1 - at]) == SDR_SUCCESS);

    int closed = 0;
    for (int descriptor = 3; descriptor < DESCRIPTORS; descriptor++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_DGRAM) {
            closed += close(descriptor) == 0;
        }
    }
    CHECK(closed == 4); /* Two channels each. */
    for (int at = 0; at < 2; at++) {
        char byte = 0;
        int code;
        while ((code = sdr_ctrl_send(pairs[at], &byte, sizeof byte)) != SDR_ERROR) {
            CHECK(code == SDR_SUCCESS || code == SDR_RETRY);
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
    CHECK(clock() / CLOCKS_PER_SEC < MOST_CPU_SECONDS);
    puts("done");
    return 0;
}
