//go:build cgo

package main

import (
	"fmt"
	"log"

	"shmcast/publisher"
)

func main() {
	prices, err := publisher.Open("prices", publisher.Options{Capacity: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close() // readers see the end of the stream
	for tick := range 40 {
		price := fmt.Sprintf("bid %d", 10000+tick*7%13)
		sequence, err := prices.Publish([]byte(price))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", sequence, price)
	}
}
