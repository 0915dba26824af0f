package shmcast

// Kind says what an [Event] is.
type Kind uint8

// The kinds of events. A loss is an event with exact numbers, never an error.
const (
	KindMessage       Kind = iota + 1
	KindLapped             // the publisher overtook this reader: Missed messages are lost, ResumedAt is next
	KindGap                // messages From to To never reached this host
	KindNewEpoch           // another publisher took over, with epoch Epoch; sequences continue
	KindNewSession         // the publisher behind a bridge began session Session
	KindRestarted          // the channel began anew: another stream
	KindEnd                // a publisher closed the channel: [Subscriber.IsOver] says whether it was the last
	KindPublisherGone      // the publisher with epoch Epoch died or left the channel open; only with [WatchPublisher]
	KindLive               // the whole board was returned: message Sequence comes next, in the order of the stream
)

var kindNames = [...]string{"none", "message", "lapped", "gap", "new-epoch", "new-session", "restarted", "end", "publisher-gone", "live"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Event is a received event. Fields that do not belong to its kind are 0. A program can use the same Event again and again.
type Event struct {
	Kind      Kind
	Key       bool   // of a message: a reader can start afresh from this message
	Tag       uint16 // of a message: the publisher's mark
	FromBoard bool   // of a message: whether it comes from the board; see [FromBoard] and [Conflate]
	Sequence  uint64 // of a message: its number in the channel, from 1; of [KindLive]: the number of the next message
	Time      uint64 // of a message: the time of publication, for [Subscriber.Age]
	Payload   []byte // of a message: a copy, valid until the next call, or as long as the caller's buffer
	Conflated uint64 // of a message from the board: number of messages of its key that were left out
	Missed    uint64
	ResumedAt uint64
	From, To  uint64
	Epoch     uint64
	Session   [10]byte
}

// message fills e. If e was a message before, its other fields are 0 already.
func (e *Event) message(commit, meta, sequence uint64, payload []byte) {
	if e.Kind != KindMessage || e.FromBoard {
		*e = Event{Kind: KindMessage}
	}
	e.Sequence, e.Payload = sequence, payload
	e.Tag, e.Time, e.Key = uint16(meta>>48), meta&(1<<48-1), commit&flagKey != 0
}
