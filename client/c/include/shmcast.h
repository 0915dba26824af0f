/* shmcast: one publisher sends messages to a hundred reader processes of the same Linux host through shared memory.
 *
 * Errors. A function that can fail returns a code: 0 or more means success, and less than 0 is an error of enum shmcast_code.
 * shmcast_error_message() then returns a sentence for the calling thread: what went wrong, where, and what to do next. A loss of messages
 * is no error. It is an event, with exact numbers.
 *
 * Threads. A handle (publisher, subscriber, select or board) can be made in one thread and used in another, but by only one thread at a
 * time: the caller orders the calls, such as by a mutex. A call during a call of another thread is usually refused with
 * SHMCAST_ERROR_MISUSE, but do not rely on this. Different handles are independent, even those of one channel. Functions without a handle
 * can be called from any thread at any time.
 *
 * Signals. Do not call any function of this header from a signal handler. Waits continue after a signal.
 *
 * Forks. After fork() handles belong to the parent. The child's copies publish and receive nothing, and return SHMCAST_ERROR_FORKED.
 * Closing the copies, or ending the child, changes nothing. A program that forks itself into the background opens its handles after the
 * fork.
 *
 * Names and texts end with a zero and are UTF-8. Times are in nanoseconds unless said otherwise. Opening and closing allocate memory. The
 * first opening of a daemon's channel starts one thread for this daemon, shmcast-keeper. Opening a publisher of more than 8 MiB starts
 * shmcast-prepare, which ends when it has touched the memory. The other functions do neither, unless a daemon's channel moves to new
 * memory.
 */
#ifndef SHMCAST_H
#define SHMCAST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHMCAST_API extern

/* Return values of functions. Numbers keep their meaning; later versions can add numbers. */
enum shmcast_code {
    SHMCAST_OK = 0,                       /* success; from a receiving function: nothing came in time */
    SHMCAST_EVENT = 1,                    /* an event was received */
    SHMCAST_ERROR_ARGUMENT = -1,          /* an argument is NULL, out of range, or contradicts another one */
    SHMCAST_ERROR_MISUSE = -2,            /* not allowed now: a call or claim is open on the handle, or no claim is */
    SHMCAST_ERROR_INTERNAL = -3,          /* a bug in the library; close the handle */
    SHMCAST_ERROR_OTHER = -4,             /* an error without a number in this version; see the sentence */
    SHMCAST_ERROR_FORKED = -5,            /* the handle belongs to the parent of this forked child; open another one */
    SHMCAST_ERROR_NAME = -10,             /* not a valid name for a channel */
    SHMCAST_ERROR_NOT_FOUND = -11,        /* no such channel */
    SHMCAST_ERROR_IN_USE = -12,           /* the channel has a live publisher */
    SHMCAST_ERROR_MISMATCH = -13,         /* the channel exists with another size or schema */
    SHMCAST_ERROR_SEGMENT = -14,          /* the channel's memory is damaged, or has another layout */
    SHMCAST_ERROR_NO_ROOM = -15,          /* the file system cannot hold the channel */
    SHMCAST_ERROR_GEOMETRY = -16,         /* a size is out of range */
    SHMCAST_ERROR_NOT_A_CHANNEL = -17,    /* the directory holds files that shmcast did not make */
    SHMCAST_ERROR_MODE = -18,             /* the channel exists with another mode */
    SHMCAST_ERROR_FOREIGN_DIRECTORY = -19,/* the directory of channels belongs to another user */
    SHMCAST_ERROR_NO_DAEMON = -20,        /* no daemon answers at the socket */
    SHMCAST_ERROR_SILENT = -21,           /* the daemon accepted the request, but has not answered in time */
    SHMCAST_ERROR_DENIED = -22,           /* the daemon does not let this user in */
    SHMCAST_ERROR_LIMIT = -23,            /* this user has too much open, or asks too often */
    SHMCAST_ERROR_REFUSED = -24,          /* the daemon refused for another reason */
    SHMCAST_ERROR_NO_WAKER = -25,         /* SHMCAST_WAIT_PARK on a channel that is a file */
    SHMCAST_ERROR_OS = -26,               /* the operating system refused; shmcast_error_os() has its errno */
    SHMCAST_ERROR_NO_BOARD = -27,         /* the channel has no board, or continues without one */
    SHMCAST_ERROR_GATE = -28,             /* the gate does not exist, has another reader, lost its page, or cannot have these limits */
    SHMCAST_ERROR_TOO_LARGE = -40,        /* the message exceeds the channel's largest; nothing was published */
    SHMCAST_ERROR_OUT_OF_SEQUENCES = -41, /* the channel has used up its sequences; nothing was published */
    SHMCAST_ERROR_CUT_OFF = -42,          /* the daemon gave the channel to another publisher; nothing was published */
    SHMCAST_ERROR_FULL = -43,             /* the reader of a gate, shmcast_error_gate(), is too far behind; nothing was published: publish it
                                           * again later */
    SHMCAST_ERROR_TOO_SMALL = -50,        /* the buffer is smaller than the message; the message is still the next one */
    SHMCAST_ERROR_CORRUPT = -51,          /* another program wrote to the channel's memory */
    SHMCAST_ERROR_UNMAPPED = -52,         /* the channel's next memory cannot be mapped; receive again */
    SHMCAST_ERROR_SUPERSEDED = -53,       /* the channel has moved to new memory; open it again */
    SHMCAST_ERROR_TOO_OLD = -54,          /* the sequence has been overwritten */
    SHMCAST_ERROR_NOT_YET = -55,          /* the sequence is not published yet */
    SHMCAST_ERROR_STALLED = -56,          /* the journal cannot say yet whether it has the message; receive again */
    SHMCAST_ERROR_BOARD = -57             /* the board and the ring could not be joined: the publisher is too fast, or the board is damaged */
};

/* The sentence about this thread's last error, at most 1023 bytes. It is valid until this thread's next error, or its end. Empty before the
 * first error. Never NULL. */
SHMCAST_API const char *shmcast_error_message(void);
/* The errno of this thread's last error, or 0. */
SHMCAST_API int32_t shmcast_error_os(void);
/* If this thread's last error is SHMCAST_ERROR_FULL, the name of the gate that refused the message; otherwise empty. Never NULL. It is
 * valid as long as the sentence. */
SHMCAST_API const char *shmcast_error_gate(void);
/* If this thread's last error is SHMCAST_ERROR_FULL, the lag of the gate's reader in bytes of the ring; otherwise 0. */
SHMCAST_API uint64_t shmcast_error_behind(void);
/* A code in one to three words, such as "not found". Valid for ever. Never NULL. */
SHMCAST_API const char *shmcast_error_name(int32_t code);
/* The version of the library, such as "0.1.0". Valid for ever. */
SHMCAST_API const char *shmcast_version(void);

/* ---- Publishing -------------------------------------------------------------------------------------------------------------- */

typedef struct shmcast_publisher shmcast_publisher;

/* Steps that prepare the memory, for the option `prepare`. A step that the system refuses is left out. The default is prefault and lock for
 * a publisher, and prefault for a subscriber. */
enum shmcast_prepare {
    SHMCAST_PREPARE_NOTHING = 1,    /* no step; cannot be combined */
    SHMCAST_PREPARE_PREFAULT = 2,   /* touch every page now */
    SHMCAST_PREPARE_HUGE_PAGES = 4, /* use huge pages; the slowest step */
    SHMCAST_PREPARE_LOCK = 8,       /* forbid swapping */
    SHMCAST_PREPARE_NUMA_NODE = 16  /* for a publisher: take memory of the node `numa_node` */
};

/* Values of `flags` for a publisher. */
enum shmcast_publish_flag {
    SHMCAST_ANEW = 1,     /* replace the existing memory; sequences begin at 1 again */
    SHMCAST_MONOTONIC = 2, /* new channel: stamp messages by CLOCK_MONOTONIC, for readers that cannot read the CPU's counter */
    SHMCAST_REMOVE_BY_TAG = 4 /* messages with the tag board_remove_tag remove their key from the board */
};

/* Values of `flags` for a gate. */
enum shmcast_gate_flag {
    SHMCAST_GATE_REFUSES = 1,    /* after the wait the message is not published: SHMCAST_ERROR_FULL. Without it the gate is dropped: its
                                  * reader can be lapped until it has caught up to half of the lag */
    SHMCAST_GATE_NEVER_WAITS = 2 /* no message waits */
};

/* A gate: a reader that the publisher waits for, within a limit. Set it to zeros first: a field with zero has its default. */
typedef struct shmcast_gate {
    const char *name;     /* the name; 1 to 31 letters, digits and . _ - : @ + */
    uint32_t flags;       /* of enum shmcast_gate_flag */
    uint32_t lag_percent; /* largest lag of the gate's reader, as a percentage of the ring; default 50 */
    uint64_t lag_bytes;   /* largest lag in bytes of the ring, instead of lag_percent */
    uint64_t wait_ns;     /* longest wait of one message; default 200 us */
    uint64_t reserved;    /* 0 */
} shmcast_gate;

/* A field with zero has its default. Begin with SHMCAST_PUBLISH_OPTIONS, which sets the size. */
typedef struct shmcast_publish_options {
    uint32_t size;           /* sizeof(shmcast_publish_options) */
    uint32_t flags;          /* of enum shmcast_publish_flag */
    const char *dir;         /* directory of channels; NULL: $SHMCAST_DIR, or the default directory */
    const char *socket;      /* a daemon's socket, instead of dir; "": $SHMCAST_SOCKET, or the default socket; NULL: no daemon */
    uint64_t capacity;       /* bytes of the ring, a power of two; default: 64 MiB, or the existing channel's */
    uint64_t max_message;    /* bytes of the largest payload; default: an eighth of the capacity, at most 16 MiB */
    uint32_t mode;           /* mode of a new channel's directory; default 0700 */
    uint32_t prepare;        /* of enum shmcast_prepare */
    uint64_t schema_id;      /* number of the message schema; default: none */
    const char *schema_name; /* its name */
    const char *labels;      /* "key=value" lines for tools to show */
    const char *continue_from; /* directory of a journal after which a new channel's sequences continue; not with a daemon */
    uint32_t numa_node;      /* for SHMCAST_PREPARE_NUMA_NODE */
    uint32_t reserved;       /* 0 */
    uint32_t board_start;    /* a new channel's board has the last message of each key: bytes board_start to board_stop of each message */
    uint32_t board_stop;     /* the byte after the key; 0: no board, or the existing channel's board */
    uint64_t board_keys;     /* number of keys for which there is room; default 1024 */
    uint64_t board_value;    /* bytes of the largest message on the board, key included; default 256 */
    uint16_t board_remove_tag; /* with SHMCAST_REMOVE_BY_TAG. A message that ends right after its key always removes the key */
    uint16_t board_reserved[3]; /* 0 */
    const shmcast_gate *gates; /* only for a channel that is a file; a daemon's configuration has the gates of its channels */
    size_t gate_count;       /* how many gates, at most 15 */
} shmcast_publish_options;

/* Opens a channel for publishing: makes it, or takes over an existing channel and continues its sequences. `options` can be NULL. Stores
 * the publisher in *publisher, or NULL after an error. */
SHMCAST_API int32_t shmcast_publisher_open(const char *channel, const shmcast_publish_options *options,
                                           shmcast_publisher **publisher);
/* Closes the channel: readers get everything that was published, and then the end. Does nothing for NULL. A publisher that is never closed
 * ends like one that died: readers see no end, and the next publisher takes over. If the reader of a gate that refuses leaves no room for
 * the end, this waits as the gate says, and then the channel ends like that too. */
SHMCAST_API int32_t shmcast_publisher_close(shmcast_publisher *publisher);

/* Publishes one message. Stores its sequence in *sequence, unless `sequence` is NULL. Waits only for gates. Takes 50 to 100 ns for 64
 * bytes while readers poll on other cores. */
SHMCAST_API int32_t shmcast_publish(shmcast_publisher *publisher, const void *data, size_t length, uint64_t *sequence);
/* Does the same as shmcast_publish() with a tag of your own. If `key` is not 0, a reader can start afresh from this message. */
SHMCAST_API int32_t shmcast_publish_with(shmcast_publisher *publisher, const void *data, size_t length, uint16_t tag,
                                         int32_t key, uint64_t *sequence);
/* Does the same as shmcast_publish_with(), but never waits for a gate: returns SHMCAST_ERROR_FULL if the gate's reader is too far behind. */
SHMCAST_API int32_t shmcast_try_publish(shmcast_publisher *publisher, const void *data, size_t length, uint16_t tag,
                                        int32_t key, uint64_t *sequence);
/* Does the same as shmcast_publish_with(), with a time that was read from shmcast_publisher_now() before. */
SHMCAST_API int32_t shmcast_publish_at(shmcast_publisher *publisher, const void *data, size_t length, uint16_t tag,
                                       int32_t key, uint64_t time, uint64_t *sequence);

/* Lends `length` bytes at *bytes for a message. At first they have the contents of earlier claims. Until shmcast_commit() or
 * shmcast_abort(), this handle can publish nothing else. */
SHMCAST_API int32_t shmcast_claim(shmcast_publisher *publisher, size_t length, void **bytes);
/* Publishes the first `length` bytes of the claim, and ends the claim. If `length` is more than was claimed, this is an error, and the
 * claim stays open. */
SHMCAST_API int32_t shmcast_commit(shmcast_publisher *publisher, size_t length, uint16_t tag, int32_t key,
                                   uint64_t *sequence);
/* Ends the claim, if there is one, and publishes nothing. */
SHMCAST_API int32_t shmcast_abort(shmcast_publisher *publisher);

/* Tells readers that the messages from the next one up to `to` will never come. The next message gets the sequence to + 1. Does nothing if
 * `to` is below the next sequence. Returns SHMCAST_ERROR_FULL if a gate that refuses has waited, and the ring still has no room before the
 * gate's reader. */
SHMCAST_API int32_t shmcast_gap(shmcast_publisher *publisher, uint64_t to);
/* Tells readers that the remote publisher behind this channel began a new session, with an identity of ten bytes. */
SHMCAST_API int32_t shmcast_session(shmcast_publisher *publisher, const uint8_t *identity);

/* The sequence of the next message. This and the other facts of a publisher are 0 for NULL. */
SHMCAST_API uint64_t shmcast_publisher_next_sequence(const shmcast_publisher *publisher);
/* The publisher's epoch: 1 for the first publisher of a channel. */
SHMCAST_API uint64_t shmcast_publisher_epoch(const shmcast_publisher *publisher);
/* The largest payload, in bytes. */
SHMCAST_API size_t shmcast_publisher_max_message(const shmcast_publisher *publisher);
/* The ring's size, in bytes. */
SHMCAST_API uint64_t shmcast_publisher_capacity(const shmcast_publisher *publisher);
/* The present time of the channel's clock, in its own ticks. */
SHMCAST_API uint64_t shmcast_publisher_now(const shmcast_publisher *publisher);
/* Returns 1 if a daemon has given the channel to another publisher, otherwise 0, or an error. */
SHMCAST_API int32_t shmcast_publisher_is_cut_off(const shmcast_publisher *publisher);

/* A gate as its publisher knows it. */
typedef struct shmcast_gate_status {
    char name[32];
    uint32_t state;        /* of enum shmcast_gate_state */
    uint32_t reserved;
    uint64_t lag_bytes;    /* largest lag of the gate's reader, in bytes of the ring */
    uint64_t behind_bytes; /* present lag of the gate's reader; 0 also if nobody holds the gate */
    uint64_t pid;          /* the process id that the gate's reader claims; 0 if nobody holds the gate */
    uint64_t held;         /* number of messages that waited for the gate */
    uint64_t longest_ns;   /* the longest of these waits */
    uint64_t total_ns;     /* the sum of these waits */
    uint64_t dropped;      /* number of times that the gate was dropped */
    uint64_t refused;      /* number of messages that were refused after a wait */
    uint64_t turned_away;  /* number of messages that shmcast_try_publish() refused */
} shmcast_gate_status;

enum shmcast_gate_state {
    SHMCAST_GATE_ABSENT = 0,   /* nobody holds the gate */
    SHMCAST_GATE_JOINING = 1,  /* the gate's reader has not caught up yet, and can be lapped */
    SHMCAST_GATE_IN_FORCE = 2, /* the publisher waits for the gate's reader, which is not lapped */
    SHMCAST_GATE_DROPPED = 3   /* the gate's reader took too long, and can be lapped until it has caught up to half of the lag */
};

/* The channel's gates, with the counts of this publisher. Stores the first `room` gates in `gates`. Returns the number of all gates, or an
 * error. Allocates memory, and makes two system calls for each gate. */
SHMCAST_API int64_t shmcast_publisher_gates(const shmcast_publisher *publisher, shmcast_gate_status *gates, size_t room);

/* ---- Receiving --------------------------------------------------------------------------------------------------------------- */

typedef struct shmcast_subscriber shmcast_subscriber;

/* The channel's journal. A subscriber reads missed messages in the journal if it is lapped and resumes with SHMCAST_RESUME_OLDEST, or if it
 * starts or seeks before everything in the ring. SHMCAST_LIVE says that it has caught up and reads the ring again.
 *
 * A daemon keeps the journals of its channels. For a channel that is a file, the environment variable SHMCAST_JOURNALS names a directory,
 * which must exist, and the journal is the subdirectory with the channel's name. Root, this user or the channel's owner must own this subdirectory. The
 * option `journal` names another directory, or none. Reading a journal allocates some MiB, makes system calls, and can wait for a disk. */

/* The place where a subscriber begins. */
enum shmcast_start {
    SHMCAST_START_LATEST = 0,  /* with the next message that is published */
    SHMCAST_START_OLDEST = 1,  /* with the oldest message of the channel's journal; without a journal, of the ring */
    SHMCAST_START_SEQUENCE = 2, /* with start_sequence; if this message was overwritten, and no journal has it, SHMCAST_LAPPED comes first */
    SHMCAST_START_TIME = 3,    /* with the journal's or the ring's first message that was published at start_time_ns or later */
    SHMCAST_START_KEY = 4,     /* with the last key message of the ring or the journal; without one, as OLDEST */
    SHMCAST_START_BOARD = 5    /* with the newest message of each key, from the board; then SHMCAST_LIVE, and every later message */
};

/* The way in which shmcast_recv() waits. */
enum shmcast_wait {
    SHMCAST_WAIT_YIELD = 0,           /* yields the core after each poll: for more readers than cores */
    SHMCAST_WAIT_SPIN = 1,            /* never pauses: lowest latency, a core at 100 % */
    SHMCAST_WAIT_BURST = 2,           /* as SPIN, for the highest rate */
    SHMCAST_WAIT_SPIN_THEN_YIELD = 3, /* spins `spins` times first */
    SHMCAST_WAIT_BACKOFF = 4,         /* spins with growing pauses, then yields */
    SHMCAST_WAIT_SLEEP = 5,           /* sleeps `sleep_ns` between polls */
    SHMCAST_WAIT_PARK = 6             /* sleeps until the daemon wakes the reader; only for a channel of a daemon */
};

/* The place where a reader continues after a lap. */
enum shmcast_resume {
    SHMCAST_RESUME_OLDEST = 0, /* at the oldest message; loses the fewest messages, and none that the journal has */
    SHMCAST_RESUME_LATEST = 1, /* at the next message to come; loses the most messages, but gains the whole ring */
    SHMCAST_RESUME_KEY = 2     /* at the last key message; without one, as OLDEST */
};

/* Values of `flags` for a subscriber. */
enum shmcast_subscribe_flag {
    SHMCAST_HIDDEN = 1,         /* tools do not see this reader */
    SHMCAST_RECORD_LATENCY = 2, /* tools see this reader's latencies; costs one reading of the clock a message */
    SHMCAST_WATCH_PUBLISHER = 4, /* returns SHMCAST_PUBLISHER_GONE; on a file, only for a user who can open the publisher's lock */
    SHMCAST_CONFLATE = 8        /* when more than conflate_behind bytes behind, returns the newest message of each key, then SHMCAST_LIVE */
};

/* A field with zero has its default. Begin with SHMCAST_SUBSCRIBE_OPTIONS, which sets the size. */
typedef struct shmcast_subscribe_options {
    uint32_t size;                /* sizeof(shmcast_subscribe_options) */
    uint32_t flags;               /* of enum shmcast_subscribe_flag */
    const char *dir;              /* as in shmcast_publish_options */
    const char *socket;           /* as in shmcast_publish_options */
    uint32_t start;               /* of enum shmcast_start */
    uint32_t wait;                /* of enum shmcast_wait */
    uint32_t resume;              /* of enum shmcast_resume */
    uint32_t prepare;             /* of enum shmcast_prepare */
    uint64_t start_sequence;      /* for SHMCAST_START_SEQUENCE */
    uint32_t spins;               /* for SHMCAST_WAIT_SPIN_THEN_YIELD */
    uint32_t reserved;            /* 0 */
    uint64_t sleep_ns;            /* for SHMCAST_WAIT_SLEEP */
    uint64_t longest_nap_ns;      /* for SHMCAST_WAIT_PARK: the longest sleep without a poll; default 0.1 s */
    uint64_t wait_for_channel_ns; /* time to wait for the channel to appear; default: no wait */
    uint64_t schema_id;           /* refuses a channel with another schema, only at the opening; default: any schema */
    uint64_t start_time_ns;       /* for SHMCAST_START_TIME: wall clock, since 1970 */
    const char *journal;          /* directory of the journal for missed messages; "": none; NULL: the default journal */
    const uint16_t *tags;         /* receives only messages with one of these; losses count those of all tags; NULL: all messages. Not with
                                   * SHMCAST_CONFLATE or SHMCAST_START_BOARD */
    size_t tag_count;             /* how many tags */
    uint64_t conflate_behind;     /* with SHMCAST_CONFLATE: bytes of the ring; default: half of the ring */
    const char *gate;             /* takes this gate: the publisher waits for this subscriber, within the gate's limit; NULL: none */
} shmcast_subscribe_options;

/* Kinds of events. A program must expect kinds that it does not know. */
enum shmcast_kind {
    SHMCAST_MESSAGE = 1,
    SHMCAST_LAPPED = 2,      /* the publisher overtook this reader: lapped.missed messages are lost, lapped.resumed_at is next */
    SHMCAST_GAP = 3,         /* messages gap.from to gap.to never reached this host, or the journal reports them as lost: see enum shmcast_cause */
    SHMCAST_NEW_EPOCH = 4,   /* another publisher took over, with epoch `epoch`; sequences continue */
    SHMCAST_NEW_SESSION = 5, /* the publisher behind a bridge began session `session` */
    SHMCAST_RESTARTED = 6,   /* the channel began anew: another stream */
    SHMCAST_END = 7,         /* a publisher closed the channel: shmcast_subscriber_is_over() says whether it was the last */
    SHMCAST_PUBLISHER_GONE = 8, /* the publisher with epoch `epoch` is gone without closing; the next call waits for the next publisher */
    SHMCAST_LIVE = 9,        /* this reader of the journal or board has caught up: message `sequence` comes next, from the ring */
    SHMCAST_UNKNOWN = 255    /* an event that this version of the header does not know */
};

/* Causes of SHMCAST_GAP. A program must expect causes that it does not know. */
enum shmcast_cause {
    SHMCAST_CAUSE_LINE = 0,       /* the messages never reached this host */
    SHMCAST_CAUSE_OVERRUN = 1,    /* the recorder of the journal was overtaken */
    SHMCAST_CAUSE_UNRECORDED = 2, /* nothing was recorded: no recorder, or it had failed */
    SHMCAST_CAUSE_TORN = 3,       /* not durable when the power failed */
    SHMCAST_CAUSE_DAMAGED = 4,    /* the disk lost them */
    SHMCAST_CAUSE_RESERVE = 5,    /* a reserve: nobody knows how many of these sequences had a message, mostly none */
    SHMCAST_CAUSE_CUT = 6         /* a tool removed them */
};

/* An event that was received. Fields that do not belong to its kind are 0. */
typedef struct shmcast_event {
    uint32_t kind;       /* of enum shmcast_kind */
    uint16_t tag;        /* of a message: the publisher's mark; of SHMCAST_GAP: the cause, of enum shmcast_cause */
    uint8_t key;         /* of a message: 1 if a reader can start afresh from this message */
    uint8_t reserved;
    uint64_t sequence;   /* of a message: its number in the channel, from 1; of SHMCAST_LIVE: the number of the next message */
    uint64_t time;       /* of a message: the time of publication, for shmcast_subscriber_age_ns() */
    const void *payload; /* of a message: its bytes; in the library's buffer, aligned to 16 bytes */
    size_t length;       /* of a message: the number of its bytes */
    union {
        struct shmcast_lapped {
            uint64_t missed;
            uint64_t resumed_at;
        } lapped;
        struct shmcast_missing {
            uint64_t from;
            uint64_t to; /* inclusive */
        } gap;
        uint64_t epoch;
        uint8_t session[10];
        struct shmcast_conflated { /* of a message */
            uint64_t from_board; /* 1 if the message came from the board, 0 if in the order of the stream */
            uint64_t left_out;   /* number of messages of the key that were left out since the key's last message */
        } conflated;
    } what;
    uint64_t reserved_too;
} shmcast_event;

#define SHMCAST_FOREVER UINT64_MAX

/* Attaches to a channel. `options` can be NULL. Stores the subscriber in *subscriber, or NULL after an error. */
SHMCAST_API int32_t shmcast_subscriber_open(const char *channel, const shmcast_subscribe_options *options,
                                            shmcast_subscriber **subscriber);
/* Detaches. NULL does nothing. */
SHMCAST_API int32_t shmcast_subscriber_close(shmcast_subscriber *subscriber);

/* Waits for the next event, for at most timeout_ns: SHMCAST_FOREVER sets no limit, and with 0 the call only polls and makes all checks.
 * Returns SHMCAST_EVENT if there is an event, SHMCAST_OK if none came in time, or an error. For a subscriber with tags, SHMCAST_OK of a call
 * with 0 can also mean that the call has left out many messages, and that more can follow. A payload lies in the library's buffer, and is
 * valid until the next call on this handle, except calls for facts. The death of a publisher is an event only with SHMCAST_WATCH_PUBLISHER. */
SHMCAST_API int32_t shmcast_recv(shmcast_subscriber *subscriber, uint64_t timeout_ns, shmcast_event *event);
/* Receives the next event if there is one. For a subscriber with tags, SHMCAST_OK can also mean that the call has left out many messages,
 * and that more can follow. If there is no event, this costs a few nanoseconds. Only one such call in 64 checks for the end of
 * the channel, a successor, a removed file of the channel, or a lap by exactly one ring. shmcast_recv() with 0 makes all these checks.
 * A file is checked once a second at most. */
SHMCAST_API int32_t shmcast_try_recv(shmcast_subscriber *subscriber, shmcast_event *event);
/* The same as shmcast_recv() and shmcast_try_recv(), with the payload copied to the start of `buffer`, which has `size` bytes. This is the
 * only copy between ring and caller. After SHMCAST_ERROR_TOO_SMALL, the message is still the next one. */
SHMCAST_API int32_t shmcast_recv_into(shmcast_subscriber *subscriber, uint64_t timeout_ns, void *buffer, size_t size,
                                      shmcast_event *event);
SHMCAST_API int32_t shmcast_try_recv_into(shmcast_subscriber *subscriber, void *buffer, size_t size, shmcast_event *event);

/* Waiting in an event loop (epoll, poll and the like). Receive until there is nothing. Then arm. Then sleep until the descriptor is
 * readable, but at most for *timeout_ns. Then receive again. */

/* The descriptor, which becomes readable when there is something to receive. A program must only wait for it: shmcast_arm() and
 * shmcast_disarm() read it, and closing the subscriber closes it. SHMCAST_ERROR_NO_WAKER if the subscriber was opened without
 * SHMCAST_WAIT_PARK: then sleep only for *timeout_ns. */
SHMCAST_API int32_t shmcast_subscriber_descriptor(const shmcast_subscriber *subscriber);
/* Call this before each sleep, when there was nothing. Returns SHMCAST_EVENT if an event came after all, and stores the event in *event.
 * Returns SHMCAST_OK if there is none: then sleep for at most *timeout_ns, which is a millisecond if no daemon wakes the reader. Cost:
 * three system calls. */
SHMCAST_API int32_t shmcast_arm(shmcast_subscriber *subscriber, uint64_t *timeout_ns, shmcast_event *event);
/* Withdraws the request of shmcast_arm(), and empties the descriptor. Needed only if the descriptor stays in the loop while the program
 * does something else. */
SHMCAST_API int32_t shmcast_disarm(shmcast_subscriber *subscriber);

/* Messages that were received together, and the event after them. Valid until the next call on the subscriber, except calls for facts. */
typedef struct shmcast_batch {
    const void *records; /* the records as they lie in the ring, for SHMCAST_FOREACH */
    size_t bytes;        /* of the records */
    size_t messages;     /* how many */
    uint64_t first;      /* sequence of the first message; 0 if there is none */
    shmcast_event event; /* what came behind them; its kind is 0 if nothing did, and never SHMCAST_MESSAGE. A message from the board is
                          * alone: then the kind is 0, and what.conflated is that message's */
} shmcast_batch;
/* Receives up to `most` available messages into *batch, and the next event after them that is no message. The messages have at most some 16
 * KiB together, or there is a larger one alone. Returns the number of messages, plus 1 if there is an event, or an error. For a subscriber
 * with tags, 0 can also mean that the call has left out many messages, and that more can follow. This is the
 * fastest way to receive many messages. It never waits, but with SHMCAST_WAIT_BURST it can first let the publisher get ahead for some
 * microseconds. */
SHMCAST_API int64_t shmcast_recv_batch(shmcast_subscriber *subscriber, size_t most, shmcast_batch *batch);

/* A message of a batch. */
typedef struct shmcast_message {
    const void *payload; /* the message's bytes, aligned to 16 bytes */
    size_t length;       /* how many */
    uint64_t sequence;   /* the message's number in the channel */
    uint64_t time;       /* the time of publication, for shmcast_subscriber_age_ns() */
    uint16_t tag;        /* the publisher's mark */
    uint8_t key;         /* 1 if a reader can start afresh from this message */
    const unsigned char *next, *end; /* for the walk only */
    size_t stride;                   /* the same */
} shmcast_message;

/* Runs a statement for each message m of a batch, without a call of the library for each message:
 * SHMCAST_FOREACH(m, &batch) sum += *(const int64_t *)m.payload; */
#define SHMCAST_FOREACH(m, batch) for (shmcast_message m = shmcast_walk(batch); shmcast_next(&m);)

/* Begins a walk over the messages of a batch. shmcast_next() moves to the first message. */
static inline shmcast_message shmcast_walk(const shmcast_batch *batch) {
    const unsigned char *records = (const unsigned char *)batch->records;
    shmcast_message m = {0, SIZE_MAX, batch->first - 1, 0, 0, 0, records, records + batch->bytes, 0};
    return m;
}

/* Moves to the next message. Returns 0 if there is none. */
static inline int shmcast_next(shmcast_message *m) {
    uint64_t commit, meta;
    size_t length;
    if (m->next == m->end) return 0;
    memcpy(&commit, m->next, sizeof commit);
    memcpy(&meta, m->next + 8, sizeof meta);
    length = commit & 0x1ffffff;
    if (length != m->length) {
        m->length = length;
        m->stride = (16 + length + 63) & ~(size_t)63;
#if defined(__GNUC__)
        /* This keeps the compiler from removing the branch. While the size is the same, the next message is found without a wait for the
         * length of this one. */
        __asm__ volatile("");
#endif
    }
    m->payload = m->next + 16;
    /* Messages can be left out, so sequences can jump. */
    m->sequence += 1 + (uint64_t)((uint32_t)(commit >> 32) - (uint32_t)(m->sequence + 1));
    m->key = (uint8_t)(commit >> 27 & 1);
    m->tag = (uint16_t)(meta >> 48);
    m->time = meta & 0xffffffffffff;
    m->next += m->stride;
    return 1;
}

/* Continues at message `sequence` of the ring or the journal, forwards or backwards. Skipped messages do not count as missed. After
 * SHMCAST_ERROR_TOO_OLD and SHMCAST_ERROR_NOT_YET, the subscriber keeps its place. */
SHMCAST_API int32_t shmcast_seek(shmcast_subscriber *subscriber, uint64_t sequence);

/* Number of messages that are published and not yet received. It can be up to 64 too low. This and the other facts of a subscriber are 0
 * for NULL. */
SHMCAST_API uint64_t shmcast_lag(const shmcast_subscriber *subscriber);
/* The sequence of the next message. */
SHMCAST_API uint64_t shmcast_subscriber_next_sequence(const shmcast_subscriber *subscriber);
/* The publisher's epoch, as the stream last reported it; 0 until the stream has reported one. */
SHMCAST_API uint64_t shmcast_subscriber_epoch(const shmcast_subscriber *subscriber);
/* The publisher's state in the memory now: a number of enum shmcast_publisher_state. A publisher that died still counts as active. */
SHMCAST_API int32_t shmcast_subscriber_publisher_state(const shmcast_subscriber *subscriber);
/* 1 if the channel is at its end now: the last event was an end, nobody publishes, and there is nothing more to receive. Otherwise 0. Each
 * publisher that closes the channel causes an end, so call this at each SHMCAST_END, and while nothing follows an end. For a subscriber
 * that begins with the latest message of a closed channel, the earlier publisher's end does not count: it waits for the next publisher. */
SHMCAST_API int32_t shmcast_subscriber_is_over(const shmcast_subscriber *subscriber);
/* Nanoseconds since the time of the last message, or of a message of the last batch; 0 if the time is in the future, or is 0, which means
 * that the message has none. */
SHMCAST_API uint64_t shmcast_subscriber_age_ns(const shmcast_subscriber *subscriber, uint64_t time);

/* ---- Several channels -------------------------------------------------------------------------------------------------------- */

/* One wait for several subscribers, which take turns: after an event of one subscriber, all others are polled before this one is polled
 * again. Events of one subscriber come in their order. There is no order between subscribers. */
typedef struct shmcast_select shmcast_select;

/* Makes a select of `count` subscribers, 1 to 4096, each given once. `options` can be NULL. Stores the select in *select, or NULL after an
 * error.
 *
 * The subscribers stay the caller's, who can call them between calls on the select. After a subscriber was closed, each call on the select
 * returns SHMCAST_ERROR_MISUSE.
 *
 * Only the options wait, spins and sleep_ns have an effect. SHMCAST_WAIT_BURST is SHMCAST_WAIT_SPIN here. With SHMCAST_WAIT_PARK a daemon
 * wakes the select, if all subscribers were opened with SHMCAST_WAIT_PARK; otherwise the select polls every millisecond. */
SHMCAST_API int32_t shmcast_select_open(shmcast_subscriber *const *subscribers, size_t count, const shmcast_subscribe_options *options,
                                        shmcast_select **select);
/* Frees the select. The subscribers stay open. Does nothing for NULL. */
SHMCAST_API int32_t shmcast_select_close(shmcast_select *select);
/* Waits for the next event of any of the subscribers, for at most timeout_ns: SHMCAST_FOREVER sets no limit, and with 0 the call does not
 * wait. Returns SHMCAST_EVENT if there is an event, SHMCAST_OK if none came in time, or an error. After an error, the next call continues
 * with the other subscribers. If a subscriber has tags, SHMCAST_OK of a call with 0 can also mean that the call has left out many messages,
 * and that more can follow.
 *
 * Stores in *index the place in the array of the subscriber that has the event or error, or `count` if nothing came. An error of the select
 * itself stores nothing. `index` can be NULL. A payload is valid until the next call on the select or on that subscriber, except calls for
 * facts. During the wait, calls on the subscribers are refused with SHMCAST_ERROR_MISUSE. Cost: a few nanoseconds for each subscriber that
 * has nothing, and one system call for each subscriber before a sleep. */
SHMCAST_API int32_t shmcast_select_recv(shmcast_select *select, uint64_t timeout_ns, size_t *index, shmcast_event *event);

/* ---- Boards ------------------------------------------------------------------------------------------------------------------ */

/* The last message of each key of a channel, which can be read at any time. A board receives nothing, and nobody notices its reader. */
typedef struct shmcast_board shmcast_board;

/* A key of a board. Its bytes and those of the message are valid until the next call on the board, except shmcast_board_age_ns(). */
typedef struct shmcast_board_entry {
    const void *key;
    size_t key_length;
    uint64_t sequence;     /* of the key's newest message */
    uint64_t count;        /* messages of this key since it came to the board, removals included; it begins again if the board gave the key's
                              place to another key */
    shmcast_event message; /* the newest message; its kind is 0 if the message is too large for the board, or its publisher
                            * did not update the board */
} shmcast_board_entry;

/* The counters of a board, of the memory that shmcast_board_get() or shmcast_board_entries() read last. */
typedef struct shmcast_board_counters {
    uint64_t through;   /* the sequence up to which each message is on the board */
    uint64_t keys;      /* number of keys on the board now */
    uint64_t no_room;   /* number of messages left out because there was no room for their keys */
    uint64_t too_large; /* number of messages left out because they were larger than a value */
    uint64_t no_key;    /* number of messages left out because they were too short to have a key */
    uint64_t since;     /* above 1: the board can lack keys whose newest message is below this sequence */
    uint64_t reserved[2];
} shmcast_board_counters;

/* Opens the board of a channel. Only the options dir, socket, prepare, wait_for_channel_ns and schema_id have an effect. Returns
 * SHMCAST_ERROR_NO_BOARD if the channel has no board. Stores the board in *board, or NULL after an error. */
SHMCAST_API int32_t shmcast_board_open(const char *channel, const shmcast_subscribe_options *options, shmcast_board **board);
/* Frees the board. Does nothing for NULL. */
SHMCAST_API int32_t shmcast_board_close(shmcast_board *board);
/* Finds the entry of a key. Returns SHMCAST_EVENT if the key is on the board, SHMCAST_OK if not, or an error. Cost: a few cache lines, and for
 * a channel of files one system call a second. */
SHMCAST_API int32_t shmcast_board_get(shmcast_board *board, const void *key, size_t key_length, shmcast_board_entry *entry);
/* All keys as they were at one moment, in the order of their sequences. Stores the first `room` of them in `entries`. Returns the number of
 * all keys, or an error. The first call allocates a copy of the board. Later calls copy what has changed. */
SHMCAST_API int64_t shmcast_board_entries(shmcast_board *board, shmcast_board_entry *entries, size_t room);
SHMCAST_API int32_t shmcast_board_count(const shmcast_board *board, shmcast_board_counters *counters);
/* Nanoseconds since a message's time; 0 if the time is in the future, or is 0, which means that the message has none. */
SHMCAST_API uint64_t shmcast_board_age_ns(const shmcast_board *board, uint64_t time);

enum shmcast_publisher_state {
    SHMCAST_STATE_UNKNOWN = 0,
    SHMCAST_STATE_ACTIVE = 1,
    SHMCAST_STATE_RECOVERING = 2,
    SHMCAST_STATE_CLOSED = 3,
    SHMCAST_STATE_SUPERSEDED = 4
};

/* Options with their size and the defaults. In C++, use shmcast.hpp, or an object that is set to {} and its size. */
#ifndef __cplusplus
#define SHMCAST_PUBLISH_OPTIONS ((shmcast_publish_options){.size = sizeof(shmcast_publish_options)})
#define SHMCAST_SUBSCRIBE_OPTIONS ((shmcast_subscribe_options){.size = sizeof(shmcast_subscribe_options)})
#endif

#ifdef __cplusplus
}
#endif
#endif
