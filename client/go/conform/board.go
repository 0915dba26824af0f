package main

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"

	"shmcast"
)

// reader is the channel that is open, and its board after the first request for a key.
type reader struct {
	*shmcast.Subscriber
	at    *request
	board *shmcast.Board
}

func (s *reader) open(r *request) (err error) {
	s.close()
	with := []shmcast.Option{r.place(), start(r.Start), shmcast.Hidden(), shmcast.WaitSpin()}
	if r.Watch == 1 {
		with = append(with, shmcast.WatchPublisher())
	}
	if r.Conflate == 1 {
		with = append(with, shmcast.Conflate())
	}
	if r.Gate != "" {
		with = append(with, shmcast.Gate(r.Gate))
	}
	s.at = r
	s.Subscriber, err = shmcast.Subscribe(r.Channel, with...)
	return err
}

func (s *reader) close() {
	if s.Subscriber != nil {
		s.Subscriber.Close()
	}
	if s.board != nil {
		s.board.Close()
	}
	*s = reader{}
}

// get looks a key up on the board of the channel that is open.
func (s *reader) get(digits string) ([]string, error) {
	key, err := hex.DecodeString(digits)
	if err != nil {
		return nil, err
	}
	if s.board == nil {
		if s.board, err = shmcast.OpenBoard(s.at.Channel, s.at.place()); err != nil {
			return nil, err
		}
	}
	entry, there, err := s.board.Get(key)
	switch {
	case err != nil:
		return nil, err
	case !there:
		return []string{}, nil
	case entry.Payload == nil:
		return []string{fmt.Sprint("too large count=", entry.Count)}, nil
	}
	mark := 0
	if entry.KeyMessage {
		mark = 1
	}
	return []string{fmt.Sprintf("message %d tag=%d key=%d time=%d length=%d crc=%08x count=%d", entry.Sequence, entry.Tag, mark, entry.Time,
		len(entry.Payload), crc32.Checksum(entry.Payload, castagnoli), entry.Count)}, nil
}
