/* Takes each published name with its published type. Compiled only, as C and as C++: a program for the published
 * header compiles after changing the include. */
#include <longhaul-sdr.h>

struct sdr_context *(*context_create)(const char *, struct sdr_dev_attr *) = sdr_context_create;
int (*context_destroy)(struct sdr_context *) = sdr_context_destroy;
struct sdr_qp *(*qp_create)(struct sdr_context *, struct sdr_qp_attr *) = sdr_qp_create;
int (*qp_destroy)(struct sdr_qp *) = sdr_qp_destroy;
int (*qp_info_size_get)(struct sdr_qp *, size_t *) = sdr_qp_info_size_get;
int (*qp_info_get)(struct sdr_qp *, void *) = sdr_qp_info_get;
int (*qp_connect)(struct sdr_qp *, void *) = sdr_qp_connect;
int (*recv_post)(struct sdr_qp *, struct sdr_recv_wr *, struct sdr_recv_handle **) = sdr_recv_post;
int (*recv_imm_get)(struct sdr_recv_handle *, uint32_t *) = sdr_recv_imm_get;
int (*recv_bitmap_get)(struct sdr_recv_handle *, uint8_t **, size_t *) = sdr_recv_bitmap_get;
int (*recv_bitmap_chunk_expand)(struct sdr_recv_handle *, uint32_t, uint64_t *) = sdr_recv_bitmap_chunk_expand;
int (*recv_complete)(struct sdr_recv_handle *) = sdr_recv_complete;
int (*send_post)(struct sdr_qp *, struct sdr_send_wr *, struct sdr_send_handle **) = sdr_send_post;
int (*send_start)(struct sdr_qp *, struct sdr_send_start_wr *, struct sdr_send_handle **) = sdr_streaming_send_start;
int (*send_continue)(struct sdr_send_handle *, struct sdr_send_continue_wr *) = sdr_streaming_send_continue;
int (*send_end)(struct sdr_send_handle *) = sdr_streaming_send_end;
int (*send_poll)(struct sdr_send_handle *, int *, struct sdr_send_status *) = sdr_send_poll;
struct sdr_mr *(*mr_reg)(struct sdr_context *, void *, size_t, enum sdr_access_flags) = sdr_mr_reg;
int (*mr_dereg)(struct sdr_mr *) = sdr_mr_dereg;
int (*mr_lkey_get)(struct sdr_mr *, uint32_t *) = sdr_mr_lkey_get;
int (*mr_rkey_get)(struct sdr_mr *, uint32_t *) = sdr_mr_rkey_get;

struct sdr_dev_attr device = {8, 0};
struct sdr_qp_attr attributes = {16, 30, 7, SDR_MTU_4096, 1, 0, 0};
struct sdr_send_wr send_wr = {SDR_WR_WRITE_WITH_IMM, 1, 65536, 2, 3, 4};
struct sdr_send_start_wr start_wr = {SDR_WR_WRITE, 0};
struct sdr_send_continue_wr continue_wr = {65536, 1, 2, 3};
struct sdr_recv_wr recv_wr = {65536, 1, 2};
struct sdr_send_status send_status = {0};

int main(void) {
    /* Enumerations stay such: in C++ a number is none. */
    enum sdr_mtu mtu = attributes.mtu;
    enum sdr_wr_opcode opcodes[] = {send_wr.opcode, start_wr.opcode};
    enum sdr_errcode codes[] = {SDR_SUCCESS, SDR_ERROR, SDR_RETRY};
    return mtu == SDR_MTU_64 || opcodes[0] == opcodes[1] || codes[0] || codes[1] != 1 || codes[2] != 2;
}
