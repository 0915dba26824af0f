package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"shmcast"
)

func main() {
	prices, err := shmcast.Subscribe("prices", shmcast.FromOldest(), shmcast.WaitForChannel(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()
	for event, err := range prices.Events(context.Background()) { // until the channel is over
		if err != nil {
			log.Fatal(err)
		}
		switch event.Kind {
		case shmcast.KindMessage: // the payload is valid until the next turn
			fmt.Printf("%d: %s\n", event.Sequence, event.Payload)
		case shmcast.KindLapped:
			fmt.Printf("too slow: missed %d messages\n", event.Missed)
		}
	}
}
