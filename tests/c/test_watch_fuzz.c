/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile bytes for the watch of hosts, in every place that reads from a socket: incoming
 * connections, answers to our own connections, news over proven connections. Only the messages of
 * the genuine peer, in their order, may prove a connection or count as news.
 *
 *   PARTIALCOLL_SCHEDULES=n  n streams or messages (100,000)
 *   PARTIALCOLL_SEED=n       run only seed n
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/random.h"
#include "check.h"
#include "watch/link.h"

enum { HOST = 2, MOST_BYTES = 256 };
static const double timeout = 10;

static struct watch_card here, there; /* `there` connects */
static uint64_t stream, drawn;

static uint32_t below(uint32_t bound)
{
    return splitmix_below(stream, drawn++, bound);
}

static void random_bytes(void *into, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)into)[i] = (unsigned char)below(256);
}

/* Change a bit, a byte or a word, or nothing. Return whether the memory changed. */
static bool mutate(void *at, size_t bytes)
{
    unsigned char before[MOST_BYTES], *byte = at;
    EXPECT(bytes <= sizeof before, "%zu bytes", bytes);
    memcpy(before, at, bytes);
    switch (below(5)) {
    case 0:
        byte[below((uint32_t)bytes)] ^= (unsigned char)(1 << below(8));
        break;
    case 1:
        byte[below((uint32_t)bytes)] = (unsigned char)below(256);
        break;
    case 2:
        memset(byte + below((uint32_t)bytes / 8) * 8, below(2) ? 0 : 255, 8);
        break;
    case 3:
        random_bytes(byte, bytes);
        break;
    default:
        break;
    }
    return memcmp(before, at, bytes) != 0;
}

/* The two ends of a connection. */
struct ends {
    int ours, theirs;
};

static struct ends connect_ends(void)
{
    int fds[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0,
           "no sockets");
    return (struct ends){fds[0], fds[1]};
}

/* Write the data in pieces, with a step of the reader after each. */
static void write_pieces(int fd, const void *data, size_t bytes,
                         void (*step)(void *arg), void *arg)
{
    const char *at = data;
    for (size_t done = 0; done < bytes;) {
        size_t piece = below(3) ? bytes - done : 1 + below((uint32_t)(bytes - done));
        if (!link_send(fd, at + done, piece))
            return; /* the reader has closed it */
        done += piece;
        step(arg);
    }
}

/* The listening side: a listener and the link that waits for the peer. */
struct listening {
    struct listener listener;
    struct link link;
};

static void step_listener(void *arg)
{
    struct listening *l = arg;
    listener_step(&l->listener, &l->link);
}

/* The peer closes. A connection whose sender may become known is kept for a while. */
static void end_incoming(struct listening *l, int theirs)
{
    close(theirs);
    for (int i = 0; i < 4; i++)
        step_listener(l);
    EXPECT(!l->listener.count || l->listener.incoming[0].state == INCOMING_PENDING,
           "a closed connection is kept");
    listener_close(&l->listener);
}

/* A handshake of the genuine peer, possibly modified: hello and proof may each be
 * changed, made by another process, replayed, or cut off. */
static void incoming_stream(void)
{
    static struct link_handshake recorded;
    static struct siphash_tag recorded_proof;
    struct listening l = {.listener = {.fd = -1, .own = &here}};
    struct link peer;
    bool genuine = true, whole = true;
    struct ends ends = connect_ends();
    link_init(&l.link, &here, &there, HOST, timeout);
    link_init(&peer, &there, &here, 1, timeout);
    listener_add(&l.listener, ends.ours);
    peer.handshake.hello = (struct link_hello){
        .magic = 0x7063574c, .version = 1, .to = here.id, .from = there.id};
    random_bytes(peer.handshake.hello.nonce, sizeof peer.handshake.hello.nonce);
    bool replays = !below(4) && recorded.hello.magic;
    if (replays)
        peer.handshake = recorded;
    struct link_hello hello = peer.handshake.hello;
    genuine = !mutate(&hello, sizeof hello) && !replays;
    write_pieces(ends.theirs, &hello, sizeof hello - !below(16), step_listener, &l);
    INVARIANT("hosts", l.link.state == LINK_AWAITED, "proven by a hello");
    if (recv(ends.theirs, &peer.handshake.challenge, sizeof peer.handshake.challenge,
             MSG_DONTWAIT) == sizeof peer.handshake.challenge) {
        if (!below(8))
            peer.key.word[below(2)] ^= (uint64_t)1 << below(64), genuine = false;
        struct siphash_tag proof =
            replays ? recorded_proof : link_proof(&peer, &peer.handshake);
        genuine = !mutate(&proof, sizeof proof) && genuine;
        whole = below(16) != 0;
        write_pieces(ends.theirs, &proof, sizeof proof - !whole, step_listener, &l);
        genuine = genuine && whole;
        recorded = peer.handshake;
        recorded_proof = proof;
    } else
        genuine = false;
    if (whole && below(2)) { /* else a cut-off message might be completed */
        char more[64];
        random_bytes(more, sizeof more);
        write_pieces(ends.theirs, more, 1 + below(sizeof more), step_listener, &l);
    }
    INVARIANT("hosts", (l.link.state == LINK_PROVEN) == genuine,
              "state %d of a connection that is %sgenuine", l.link.state,
              genuine ? "" : "not ");
    end_incoming(&l, ends.theirs);
    link_end(&l.link);
}

/* Random bytes. At the end the connection is closed. */
static void incoming_noise(void)
{
    struct listening l = {.listener = {.fd = -1, .own = &here}};
    char bytes[MOST_BYTES];
    struct ends ends = connect_ends();
    size_t length = 1 + below(sizeof bytes);
    link_init(&l.link, &here, &there, HOST, timeout);
    listener_add(&l.listener, ends.ours);
    random_bytes(bytes, length);
    write_pieces(ends.theirs, bytes, length, step_listener, &l);
    INVARIANT("hosts", l.link.state == LINK_AWAITED, "state %d", l.link.state);
    end_incoming(&l, ends.theirs);
}

static void step_link(void *arg)
{
    uint64_t host;
    enum link_event event = link_step(arg, &host);
    EXPECT(event != LINK_LOST, "lost by bytes");
}

/* Answers to our connection: changed, cut off, or of another process. */
static void outgoing_stream(void)
{
    struct link ours, theirs;
    struct link_challenge challenge;
    struct siphash_tag proof;
    bool genuine = true;
    struct ends ends = connect_ends();
    link_init(&ours, &there, &here, 1, timeout);
    memset(ours.peer.address, 0, sizeof ours.peer.address); /* no second attempt */
    ours.fd = ends.ours;
    ours.state = LINK_CONNECTING;
    ours.due = INT64_MAX;
    step_link(&ours);
    link_init(&theirs, &here, &there, HOST, timeout);
    EXPECT(recv(ends.theirs, &theirs.handshake.hello, sizeof theirs.handshake.hello,
                0) == sizeof theirs.handshake.hello,
           "no hello");
    EXPECT(card_draw(&theirs.handshake.challenge, sizeof theirs.handshake.challenge),
           "no random numbers");
    challenge = theirs.handshake.challenge;
    genuine = !mutate(&challenge, sizeof challenge);
    write_pieces(ends.theirs, &challenge, sizeof challenge, step_link, &ours);
    if (!below(8))
        theirs.key.word[below(2)] ^= (uint64_t)1 << below(64), genuine = false;
    if (below(2))
        genuine =
            !mutate(&theirs.handshake.hello, sizeof theirs.handshake.hello) && genuine;
    EXPECT(recv(ends.theirs, &proof, sizeof proof, 0) == sizeof proof, "no proof");
    struct ends answer = connect_ends(); /* to read what link_accept sends */
    struct siphash_tag tag;
    link_accept(&theirs, answer.ours, &theirs.handshake);
    EXPECT(recv(answer.theirs, &tag, sizeof tag, 0) == sizeof tag, "no answer");
    if (!below(4))
        tag = proof, genuine = false; /* our own tag, sent back */
    genuine = !mutate(&tag, sizeof tag) && genuine;
    write_pieces(ends.theirs, &tag, sizeof tag, step_link, &ours);
    INVARIANT("hosts", (ours.state == LINK_PROVEN) == genuine,
              "state %d of an answer that is %sgenuine", ours.state,
              genuine ? "" : "not ");
    link_end(&ours);
    link_end(&theirs);
    close(ends.theirs);
    close(answer.theirs);
}

/* Prove a connection whose other end the test holds. */
static void prove(struct link *ours, struct link *theirs, struct ends ends)
{
    struct link_handshake handshake;
    struct siphash_tag answer;
    random_bytes(&handshake, sizeof handshake);
    link_init(ours, &here, &there, HOST, timeout);
    link_init(theirs, &there, &here, 1, timeout);
    link_accept(ours, ends.ours, &handshake);
    link_accept(theirs, ends.theirs, &handshake);
    EXPECT(recv(ends.ours, &answer, sizeof answer, 0) == sizeof answer &&
               recv(ends.theirs, &answer, sizeof answer, 0) == sizeof answer,
           "no answers");
}

/* Messages in order, then one changed, repeated, left out, or our own sent back. */
static void news_stream(void)
{
    struct link ours, theirs;
    struct link_news news[8], next;
    struct ends ends = connect_ends(), written = connect_ends();
    uint32_t count = 1 + below(6), got = 0;
    uint64_t host;
    prove(&ours, &theirs, ends);
    struct link writer = theirs; /* writes all messages that the peer would send */
    writer.fd = written.ours;
    for (uint32_t i = 0; i < count + 2; i++) {
        link_tell(&writer, 100 + i);
        EXPECT(recv(written.theirs, &news[i], sizeof *news, 0) == sizeof *news, "none");
    }
    next = news[count];
    bool genuine = false;
    switch (below(5)) {
    case 0:
        next = news[below(count)];
        break;
    case 1:
        next = news[count + 1];
        break;
    case 2:
        for (uint32_t i = 0; i <= count; i++) { /* the last one has the same number */
            link_tell(&ours, 100 + i);
            EXPECT(recv(ends.theirs, &next, sizeof next, 0) == sizeof next, "none");
        }
        break;
    default:
        genuine = !mutate(&next, sizeof next);
    }
    link_send(ends.theirs, news, count * sizeof *news);
    link_send(ends.theirs, &next, sizeof next);
    for (; link_step(&ours, &host) == LINK_NEWS; got++)
        INVARIANT("hosts", host == 100 + got, "news of host %llu",
                  (unsigned long long)host);
    INVARIANT("hosts", got == count + genuine, "%u messages, expected %u", got,
              count + genuine);
    INVARIANT("hosts", (ours.state == LINK_PROVEN) == genuine, "state %d", ours.state);
    link_end(&ours);
    link_end(&theirs);
    close(written.ours);
    close(written.theirs);
}

static void one(uint64_t seed)
{
    static void (*const kinds[])(void) = {incoming_stream, incoming_noise,
                                          outgoing_stream, news_stream};
    snprintf(check_context, sizeof check_context, "PARTIALCOLL_SEED=%llu",
             (unsigned long long)seed);
    stream = seed;
    drawn = 0;
    kinds[seed % (sizeof kinds / sizeof *kinds)]();
}

int main(void)
{
    setenv("PARTIALCOLL_INTERFACE", "lo", 1);
    EXPECT(card_fill(&here) && card_fill(&there), "no cards");
    here.id = 2;
    there.id = 1;
    printf("%llu hostile streams and messages: nothing but the genuine ones counts\n",
           (unsigned long long)check_seeds(100000, one));
    return 0;
}
