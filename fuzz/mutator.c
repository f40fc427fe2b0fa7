/* A mutator that knows the file: without it no mutation would get past the checksum, and few past the first operation.
 *
 * One section of a file is changed by libFuzzer. Usually the file is then repaired: operations from the first broken
 * one on are dropped, the payload gets the length that the others ask for, and the header the right lengths and
 * checksum. A share of the files stays broken in the payload, the program or the header, so that those checks are
 * tried as well. The repair walks through the program with the parser's own functions, so that there is no
 * second description of the format here. */
#include "../csrc/parser.c"

#include <stdlib.h>

enum { SECTIONS = 4, PROGRAM = 0, PAYLOAD = 3, LARGEST_UINT = 5 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/* The sections of a file, each in memory of its own with room for `max_size` bytes. */
typedef struct parts {
    uint8_t *bytes[SECTIONS];
    size_t length[SECTIONS], max_size;
    uint8_t minor; /* version of the file */
} parts;

static parts take_apart(const uint8_t *data, size_t size, size_t max_size) {
    parts p = {.max_size = max_size, .minor = size < SB_HEADER_SIZE ? SB_MINOR : data[7]};
    size_t next = size < SB_HEADER_SIZE ? size : SB_HEADER_SIZE;
    for (int i = 0; i < SECTIONS; i++) {
        const size_t claimed = size < SB_HEADER_SIZE ? 0 : sb_load_u32(data + SB_CHECKED_FROM + 4 * i);
        p.length[i] = i == PAYLOAD || claimed > size - next ? size - next : claimed;
        p.bytes[i] = calloc(1, max_size);
        if (!p.bytes[i]) abort();
        memcpy(p.bytes[i], data + next, p.length[i]);
        next += p.length[i];
    }
    return p;
}

static void store_u32(uint8_t *p, uint32_t value) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(value >> 8 * i);
}

/* Writes the sections behind a header that fits them; what does not fit into max_size is cut off. */
static size_t put_together(const parts *p, uint8_t *out) {
    const uint8_t start[8] = {'S', 'B', 'I', 'T', 0xff, 0xfe, SB_MAJOR, p->minor};
    size_t size = SB_HEADER_SIZE;
    memcpy(out, start, sizeof start);
    for (int i = 0; i < SECTIONS; i++) {
        const size_t length = p->length[i] < p->max_size - size ? p->length[i] : p->max_size - size;
        store_u32(out + SB_CHECKED_FROM + 4 * i, (uint32_t)length);
        memcpy(out + size, p->bytes[i], length);
        size += length;
    }
    store_u32(out + 8, (uint32_t)size);
    store_u32(out + 12, checksum(out + SB_CHECKED_FROM, size - SB_CHECKED_FROM));
    return size;
}

/* ------------------------------------------------------------------------------------------------- repair */

enum { MAX_REPAIRED = 64 };

typedef struct places {
    const uint8_t *program[MAX_REPAIRED + 1], *payload[MAX_REPAIRED + 1]; /* where operation i starts */
    const uint8_t *counts;                                                 /* where the number of operations is stored */
    int32_t good, output;
} places;

/* Reads as many sound operations as there are, whatever the stored count says. */
static places find_sound_operations(sb_reader *p, sb_program *program) {
    places found = {0};
    p->half = sb_read_byte(p, &p->program) == 1;
    const int32_t rank = sb_read_rank(p);
    program->input = sb_read_shape(p, rank ? rank : 1);
    found.counts = p->program.next;
    sb_read_uint(p, &p->program, SB_MAX_OPS);
    found.output = sb_read_uint(p, &p->program, SB_MAX_OPS);
    p->ops = program->ops = sb_reserve(p, MAX_REPAIRED, sizeof *program->ops);
    for (p->op = 0; !p->status; p->op = found.good) {
        found.program[found.good] = p->program.next;
        found.payload[found.good] = p->payload.next;
        if (p->program.next == p->program.end || found.good == MAX_REPAIRED) break;
        sb_op *op = &program->ops[found.good];
        op->name = "";
        op->code = sb_read_byte(p, &p->program);
        read_inputs(p, op, found.good + 1);
        read_attributes(p, op);
        found.good += !p->status;
    }
    return found;
}

static size_t write_uint(uint8_t *out, uint32_t value) {
    size_t length = 0;
    for (; value >= 0x80; value >>= 7) out[length++] = (uint8_t)(value | 0x80);
    out[length++] = (uint8_t)value;
    return length;
}

static void repair(parts *sections) {
    sb_heap heap = {.limit = 1 << 20};
    sb_error error = {.op = 0};
    sb_program program = {0};
    uint8_t *bytes = sections->bytes[PROGRAM], *payload = sections->bytes[PAYLOAD];
    /* the payload is followed by zeros: numbers that are 0, indices of filter 0 */
    sb_reader p = {.heap = &heap, .error = &error, .op = -1, .minor = SB_MINOR,
                .program = {bytes, bytes + sections->length[PROGRAM]},
                .payload = {payload, payload + sections->max_size}};
    places found = find_sound_operations(&p, &program);
    sb_value *values = sb_alloc(&heap, MAX_REPAIRED + 1, sizeof *values);
    if (found.program[0] && values) {
        program.op_count = found.good;
        if (sb_infer_shapes(&program, values, &error)) program.op_count = found.good = error.op;
        sections->minor = lowest_minor(&program);
        uint8_t *rest = malloc(sections->max_size);
        if (!rest) abort();
        const size_t ops = (size_t)(found.program[found.good] - found.program[0]);
        memcpy(rest, found.program[0], ops);
        size_t length = (size_t)(found.counts - bytes);
        length += write_uint(bytes + length, (uint32_t)found.good);
        length += write_uint(bytes + length, (uint32_t)(found.output < found.good ? found.output : found.good));
        memcpy(bytes + length, rest, ops < sections->max_size - length ? ops : sections->max_size - length);
        sections->length[PROGRAM] = length + ops < sections->max_size ? length + ops : sections->max_size;
        sections->length[PAYLOAD] = (size_t)(found.payload[found.good] - payload);
        free(rest);
    }
    sb_free_all(&heap);
}

/* ----------------------------------------------------------------------------------------------- mutation */

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static const uint8_t SECTION[8] = {PROGRAM, PROGRAM, PROGRAM, PROGRAM, PROGRAM, PAYLOAD, PAYLOAD, 1};
    if (seed % 32 == 0 || max_size < 2 * SB_HEADER_SIZE + LARGEST_UINT) return LLVMFuzzerMutate(data, size, max_size);
    parts p = take_apart(data, size, max_size);
    int chosen = SECTION[seed / 32 % 8];
    chosen += chosen == 1 && seed / 256 % 2; /* names or metadata */
    p.length[chosen] = LLVMFuzzerMutate(p.bytes[chosen], p.length[chosen], max_size - SB_HEADER_SIZE);
    if (seed / 512 % 8) repair(&p);
    const size_t mutated = put_together(&p, data);
    for (int i = 0; i < SECTIONS; i++) free(p.bytes[i]);
    return mutated;
}
