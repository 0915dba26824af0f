//go:build cgo

package main

import (
	"fmt"
	"log"

	"shmcast"
	"shmcast/publisher"
)

func main() {
	// The first 7 bytes of a message are its key. The publisher waits for the reader of the gate, and refuses a message after 200 us.
	prices, err := publisher.Open("board-of-prices", publisher.Options{
		Capacity: 1 << 20,
		Board:    publisher.Board{KeyEnd: 7, Keys: 1000},
		Gates:    []publisher.Gate{{Name: "risk", Refuses: true}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()
	for tick := range 50_000 {
		if _, err := prices.Publish(fmt.Appendf(nil, "SYM%04d %d", tick%1000, tick)); err != nil {
			log.Fatal(err)
		}
	}

	// This reader starts now. It gets the newest message of each key, then every later one, and holds the gate.
	late, err := shmcast.Subscribe("board-of-prices", shmcast.FromBoard(), shmcast.Gate("risk"))
	if err != nil {
		log.Fatal(err)
	}
	defer late.Close()
	last := map[string]string{}
	var event shmcast.Event
	for event.Kind != shmcast.KindLive {
		if _, err := late.TryRecv(&event); err != nil {
			log.Fatal(err)
		}
		if event.Kind == shmcast.KindMessage {
			last[string(event.Payload[:7])] = string(event.Payload[8:])
		}
	}
	fmt.Println(len(last), "keys; the stream goes on with message", event.Sequence)

	// One key, without the stream.
	board, err := shmcast.OpenBoard("board-of-prices")
	if err != nil {
		log.Fatal(err)
	}
	defer board.Close()
	entry, isThere, err := board.Get([]byte("SYM0007"))
	fmt.Printf("%s has had %d messages: %s %t %v\n", entry.Key, entry.Count, entry.Payload, isThere, err)
}
