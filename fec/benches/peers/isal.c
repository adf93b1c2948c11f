/* ISA-L on the cases of `erasure.rs`: `isal K M LEN LOSSES...` prints the rate of encoding, and of decoding so many lost data packets, in GB/s of data.
 * Decoding as the library's own examples do it: invert the k x k matrix of what is left, then compute only the rows of what is lost. */
#include <isa-l.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX = 255, PATTERNS = 32, MEASUREMENTS = 80, MEASUREMENT_NS = 1500000 };

static int k, m, len;
static unsigned char *packets[MAX], *out[MAX];
static unsigned char matrix[MAX * MAX], tables[MAX * MAX * 32];

static uint64_t state;
static uint64_t random_number(void) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void encode(void) { ec_encode_data(len, k, m, tables, packets, packets + k); }

static int losses, next, patterns[PATTERNS][MAX];

static void draw_patterns(void) {
    state = 2;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int drawn = 0; drawn < losses;) {
            int lost = (int)(random_number() % (uint64_t)k), known = 0;
            for (int i = 0; i < drawn; i++) known |= patterns[pattern][i] == lost;
            if (!known) patterns[pattern][drawn++] = lost;
        }
}

static void decode(void) {
    static unsigned char left[MAX * MAX], inverse[MAX * MAX], rows[MAX * MAX], decoding[MAX * MAX * 32];
    unsigned char *sources[MAX];
    const int *lost = patterns[next++ % PATTERNS];
    int row = 0;
    for (int i = 0; i < k + m && row < k; i++) {
        int gone = 0;
        for (int j = 0; j < losses; j++) gone |= lost[j] == i;
        if (gone) continue;
        memcpy(left + row * k, matrix + i * k, (size_t)k);
        sources[row++] = packets[i];
    }
    if (gf_invert_matrix(left, inverse, k) != 0) abort();
    for (int j = 0; j < losses; j++) memcpy(rows + j * k, inverse + lost[j] * k, (size_t)k);
    ec_init_tables(k, losses, rows, decoding);
    ec_encode_data(len, k, losses, decoding, sources, out);
}

static double rate(void (*run)(void)) {
    uint64_t begun = now();
    run();
    uint64_t once = now() - begun, best = UINT64_MAX, times;
    if (once < 100) once = 100;
    times = MEASUREMENT_NS / once;
    if (times < 1) times = 1;
    for (int i = 0; i < MEASUREMENTS; i++) {
        begun = now();
        for (uint64_t j = 0; j < times; j++) run();
        uint64_t each = (now() - begun) / times;
        if (each < best) best = each;
    }
    return (double)k * len / (double)best;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    k = atoi(argv[1]), m = atoi(argv[2]), len = atoi(argv[3]);
    if (k < 1 || m < 1 || k + m > MAX || len < 1) return 2;
    state = 1;
    for (int i = 0; i < k + m; i++) {
        packets[i] = aligned_alloc(64, ((size_t)len + 63) / 64 * 64);
        out[i] = aligned_alloc(64, ((size_t)len + 63) / 64 * 64);
        for (int j = 0; j < len; j++) packets[i][j] = (unsigned char)random_number();
    }
    gf_gen_cauchy1_matrix(matrix, k + m, k);
    ec_init_tables(k, m, matrix + k * k, tables);
    printf("%f", rate(encode));
    for (int i = 4; i < argc; i++) {
        losses = atoi(argv[i]);
        if (losses < 1 || losses > m) return 2;
        draw_patterns();
        printf(" %f", rate(decode));
        for (int j = 0; j < losses; j++)
            if (memcmp(out[j], packets[patterns[(next - 1) % PATTERNS][j]], (size_t)len) != 0) return 1;
    }
    printf("\n");
    return 0;
}
