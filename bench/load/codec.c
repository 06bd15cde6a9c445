/* TLS, deflate and snappy on a connection, as IDENTIFY agreed on them. Codecs stand on each other: compression on TLS.
 *
 * TLS and deflate come with OpenSSL and zlib, and are left out where their headers are missing (see the Makefile). */
#include "load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef WITH_LIBRARIES
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <zlib.h>
#endif

struct codec {
    struct codec *below;
    void (*encode)(struct codec *codec, const char *data, size_t size, struct bytes *out);
    void (*decode)(struct codec *codec, const char *data, size_t size, struct bytes *out);
    void (*close)(struct codec *codec);
    struct bytes part;  /* what the codec below gave */
    struct bytes chunk; /* snappy: a chunk that has not come whole */
#ifdef WITH_LIBRARIES
    SSL *ssl;
    z_stream deflating, inflating;
#endif
};

enum { STEP_BYTES = 1 << 16 };

#ifdef WITH_LIBRARIES

/* ---- TLS: its records pass through two buffers in memory, so that reading and writing stay ours ---- */

static void take_records(SSL *ssl, struct bytes *out) {
    BIO *bio = SSL_get_wbio(ssl);
    for (size_t waiting; (waiting = BIO_ctrl_pending(bio)) > 0;) {
        int count = BIO_read(bio, reserve(out, waiting), (int)waiting);
        if (count > 0) out->end += (size_t)count;
    }
}

static void tls_encode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    if (size > 0 && SSL_write(codec->ssl, data, (int)size) <= 0)
        fail("TLS: %s", ERR_error_string(ERR_get_error(), NULL));
    take_records(codec->ssl, out);
}

static void tls_decode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    BIO_write(SSL_get_rbio(codec->ssl), data, (int)size);
    while (true) {
        int count = SSL_read(codec->ssl, reserve(out, STEP_BYTES), STEP_BYTES);
        if (count <= 0) break;
        out->end += (size_t)count;
    }
}

static void tls_close(struct codec *codec) { SSL_free(codec->ssl); }

static void tls_handshake(SSL *ssl, int fd) {
    struct bytes out = {0};
    while (true) {
        int done = SSL_do_handshake(ssl);
        take_records(ssl, &out);
        for (; out.start < out.end;) {
            ssize_t written = write(fd, out.data + out.start, out.end - out.start);
            if (written <= 0) fail("TLS: write: %s", strerror(errno));
            out.start += (size_t)written;
        }
        if (done == 1) break;
        if (SSL_get_error(ssl, done) != SSL_ERROR_WANT_READ) fail("TLS: %s", ERR_error_string(ERR_get_error(), NULL));
        char chunk[4096];
        ssize_t count = read(fd, chunk, sizeof chunk);
        if (count <= 0) fail("TLS: nsqd closed the connection");
        BIO_write(SSL_get_rbio(ssl), chunk, (int)count);
    }
    free(out.data);
}

static void open_tls(struct codec *codec, int fd) {
    static SSL_CTX *context;
    if (context == NULL) context = SSL_CTX_new(TLS_client_method());
    codec->ssl = SSL_new(context);
    SSL_set_bio(codec->ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(codec->ssl);
    tls_handshake(codec->ssl, fd);
    codec->encode = tls_encode;
    codec->decode = tls_decode;
    codec->close = tls_close;
}

/* ---- deflate: one stream in each direction, flushed so that each write can be read ---- */

static void deflate_into(z_stream *stream, const char *data, size_t size, struct bytes *out) {
    stream->next_in = (Bytef *)data;
    stream->avail_in = (uInt)size;
    do {
        stream->next_out = (Bytef *)reserve(out, STEP_BYTES);
        stream->avail_out = STEP_BYTES;
        deflate(stream, Z_SYNC_FLUSH);
        out->end += STEP_BYTES - stream->avail_out;
    } while (stream->avail_out == 0);
}

static void deflate_encode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    deflate_into(&codec->deflating, data, size, out);
}

static void open_deflating(z_stream *stream) {
    /* The level 6 is nsqd's default too; a negative window: no header, as nsqd has it. */
    deflateInit2(stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
}

static void deflate_decode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    z_stream *stream = &codec->inflating;
    stream->next_in = (Bytef *)data;
    stream->avail_in = (uInt)size;
    do {
        stream->next_out = (Bytef *)reserve(out, STEP_BYTES);
        stream->avail_out = STEP_BYTES;
        int state = inflate(stream, Z_SYNC_FLUSH);
        if (state != Z_OK && state != Z_BUF_ERROR) fail("deflate: nsqd sent bytes that cannot be inflated");
        out->end += STEP_BYTES - stream->avail_out;
    } while (stream->avail_out == 0);
}

static void deflate_close(struct codec *codec) {
    deflateEnd(&codec->deflating);
    inflateEnd(&codec->inflating);
}

static void open_deflate(struct codec *codec) {
    open_deflating(&codec->deflating);
    inflateInit2(&codec->inflating, -MAX_WBITS);
    codec->encode = deflate_encode;
    codec->decode = deflate_decode;
    codec->close = deflate_close;
}

#endif

/* ---- snappy, in its framing format ----
 *
 *     +------+-----------+-------------+--------
 *     | type | length    | checksum    | data         a chunk: 0 compressed, 1 as it is, 255 the stream's beginning
 *     +------+-----------+-------------+--------
 *      u8     u24, little  u32, little   at most 65536 bytes when decompressed
 */

enum { CHUNK_BYTES = 65536, HASH_BITS = 14, COMPRESSED = 0, UNCOMPRESSED = 1, STREAM = 255 };

static const char stream_head[] = "\xff\x06\x00\x00sNaPpY";

static uint32_t checksum(const char *data, size_t size) {
    static uint32_t table[8][256]; /* CRC-32C, eight bytes at a time */
    if (table[0][1] == 0) {
        for (uint32_t index = 0; index < 256; index++) {
            uint32_t value = index;
            for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78 : 0);
            table[0][index] = value;
        }
        for (int row = 1; row < 8; row++)
            for (int index = 0; index < 256; index++)
                table[row][index] = table[row - 1][index] >> 8 ^ table[0][table[row - 1][index] & 255];
    }
    uint32_t value = 0xffffffff;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= value;
        value = 0;
        for (int row = 0; row < 8; row++) value ^= table[7 - row][word >> (8 * row) & 255];
    }
    for (; size > 0; data++, size--) value = value >> 8 ^ table[0][(value ^ (uint8_t)*data) & 255];
    value = ~value;
    return (value >> 15 | value << 17) + 0xa282ead8; /* masked, as the format says */
}

static char *put_literal(char *to, const char *from, size_t size) {
    if (size == 0) return to;
    size_t last = size - 1;
    if (last < 60) {
        *to++ = (char)(last << 2);
    } else if (last < 256) {
        *to++ = (char)(60 << 2);
        *to++ = (char)last;
    } else {
        *to++ = (char)(61 << 2);
        *to++ = (char)last;
        *to++ = (char)(last >> 8);
    }
    memcpy(to, from, size);
    return to + size;
}

static char *put_copy(char *to, size_t offset, size_t size) {
    while (size > 0) {
        size_t length = size > 64 ? 60 : size; /* the rest stays long enough */
        *to++ = (char)((length - 1) << 2 | 2);
        *to++ = (char)offset;
        *to++ = (char)(offset >> 8);
        size -= length;
    }
    return to;
}

static uint32_t word_at(const char *data) {
    uint32_t word;
    memcpy(&word, data, 4);
    return word;
}

/* Greedy: the latest place with the same four bytes is tried. Returns the compressed size. */
static size_t snappy_compress(const char *data, size_t size, char *out) {
    static uint16_t places[1 << HASH_BITS];
    char *to = out;
    size_t at = 0, literal = 0, left = size;
    for (; left >= 128; left >>= 7) *to++ = (char)(left | 128);
    *to++ = (char)left;
    memset(places, 0, sizeof places);
    while (size >= 16 && at < size - 15) {
        uint16_t *place = &places[word_at(data + at) * 0x1e35a7bd >> (32 - HASH_BITS)];
        size_t candidate = *place;
        *place = (uint16_t)at;
        if (candidate >= at || word_at(data + candidate) != word_at(data + at)) {
            at += 1 + ((at - literal) >> 5); /* what does not compress is passed over faster and faster */
            continue;
        }
        size_t length = 4;
        while (at + length < size && data[candidate + length] == data[at + length]) length++;
        to = put_literal(to, data + literal, at - literal);
        to = put_copy(to, at - candidate, length);
        at += length;
        literal = at;
    }
    to = put_literal(to, data + literal, size - literal);
    return (size_t)(to - out);
}

static void snappy_encode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    (void)codec;
    while (size > 0) {
        size_t length = size < CHUNK_BYTES ? size : CHUNK_BYTES;
        char *chunk = reserve(out, 8 + length + length / 6 + 32);
        uint32_t check = checksum(data, length);
        size_t compressed = snappy_compress(data, length, chunk + 8);
        bool is_worth_it = compressed < length - length / 8;
        if (!is_worth_it) memcpy(chunk + 8, data, compressed = length);
        chunk[0] = is_worth_it ? COMPRESSED : UNCOMPRESSED;
        for (int byte = 0; byte < 3; byte++) chunk[1 + byte] = (char)((compressed + 4) >> (8 * byte));
        memcpy(chunk + 4, &check, 4);
        out->end += 8 + compressed;
        data += length;
        size -= length;
    }
}

static void snappy_decompress(const uint8_t *data, size_t size, struct bytes *out) {
    const uint8_t *end = data + size;
    size_t whole = 0;
    for (int shift = 0; data < end; shift += 7) {
        whole |= (size_t)(*data & 127) << shift;
        if (*data++ < 128) break;
    }
    if (whole > CHUNK_BYTES) fail("snappy: a chunk of %zu bytes", whole);
    char *start = reserve(out, whole), *to = start;
    while (data < end) {
        unsigned tag = *data++, offset;
        size_t length = (tag >> 2) + 1;
        static const int offset_bytes[] = {0, 1, 2, 4};
        int behind = tag & 3 ? offset_bytes[tag & 3] : length > 60 ? (int)length - 60 : 0;
        if (end - data < behind) fail("snappy: a damaged chunk");
        if ((tag & 3) == 0) {
            if (length > 60) {
                unsigned extra = (unsigned)length - 60;
                length = 0;
                for (unsigned byte = 0; byte < extra; byte++) length |= (size_t)*data++ << (8 * byte);
                length++;
            }
            if (length > (size_t)(end - data) || length > whole - (size_t)(to - start)) fail("snappy: a damaged chunk");
            memcpy(to, data, length);
            data += length;
            to += length;
            continue;
        }
        if ((tag & 3) == 1) {
            length = (tag >> 2 & 7) + 4;
            offset = tag >> 5 << 8 | *data++;
        } else {
            offset = data[0] | (unsigned)data[1] << 8;
            data += (tag & 3) == 2 ? 2 : 4;
        }
        size_t done = (size_t)(to - start);
        if (offset == 0 || offset > done || length > whole - done) fail("snappy: a damaged chunk");
        for (; length > 0; length--, to++) *to = *(to - offset);
    }
    out->end += whole;
}

static void snappy_decode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    struct bytes *chunk = &codec->chunk;
    append(chunk, data, size);
    while (chunk->end - chunk->start >= 4) {
        const uint8_t *head = (const uint8_t *)chunk->data + chunk->start;
        size_t length = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16;
        if (chunk->end - chunk->start - 4 < length) break;
        if (head[0] == COMPRESSED && length > 4) snappy_decompress(head + 8, length - 4, out);
        else if (head[0] == UNCOMPRESSED && length > 4) append(out, head + 8, length - 4);
        else if (head[0] != STREAM) fail("snappy: a chunk of type %d and %zu bytes", head[0], length);
        chunk->start += 4 + length;
    }
}

static void snappy_close(struct codec *codec) { free(codec->chunk.data); }

/* ---- a codec on another ---- */

static void write_all(int fd, struct bytes *out) {
    while (out->start < out->end) {
        ssize_t written = write(fd, out->data + out->start, out->end - out->start);
        if (written <= 0) fail("write: %s", strerror(errno));
        out->start += (size_t)written;
    }
    free(out->data);
}

static void open_snappy(struct codec *codec, int fd) {
    struct bytes out = {0};
    if (codec->below) encode(codec->below, stream_head, 10, &out);
    else append(&out, stream_head, 10);
    write_all(fd, &out);
    codec->encode = snappy_encode;
    codec->decode = snappy_decode;
    codec->close = snappy_close;
}

struct codec *new_codec(const char *name, struct codec *below, int fd) {
    struct codec *codec = calloc(1, sizeof *codec);
    if (codec == NULL) fail("there is no memory for %s", name);
    codec->below = below;
    if (strcmp(name, "snappy") == 0) open_snappy(codec, fd);
#ifdef WITH_LIBRARIES
    else if (strcmp(name, "tls") == 0) open_tls(codec, fd);
    else if (strcmp(name, "deflate") == 0) open_deflate(codec);
#endif
    else fail("the generator was built without %s: OpenSSL's or zlib's headers are missing", name);
    return codec;
}

void compress_alone(const char *name, const char *data, size_t size, struct bytes *out) {
#ifdef WITH_LIBRARIES
    if (strcmp(name, "deflate") == 0) {
        z_stream stream = {0}; /* a new one: it has no past to refer to */
        open_deflating(&stream);
        deflate_into(&stream, data, size, out);
        deflateEnd(&stream);
        return;
    }
#else
    (void)name;
#endif
    snappy_encode(NULL, data, size, out);
}

void encode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    if (codec->below == NULL) {
        codec->encode(codec, data, size, out);
        return;
    }
    codec->encode(codec, data, size, &codec->part);
    encode(codec->below, codec->part.data + codec->part.start, codec->part.end - codec->part.start, out);
    codec->part.start = codec->part.end = 0;
}

void decode(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    if (codec->below == NULL) {
        codec->decode(codec, data, size, out);
        return;
    }
    struct bytes plain = {0};
    decode(codec->below, data, size, &plain);
    codec->decode(codec, plain.data + plain.start, plain.end - plain.start, out);
    free(plain.data);
}

void decode_top(struct codec *codec, const char *data, size_t size, struct bytes *out) {
    codec->decode(codec, data, size, out);
}

void free_codec(struct codec *codec) {
    if (codec->below) free_codec(codec->below);
    codec->close(codec);
    free(codec->part.data);
    free(codec);
}
