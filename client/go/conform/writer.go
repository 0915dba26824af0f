//go:build cgo

package main

import (
	"errors"
	"fmt"
	"time"

	"shmcast/publisher"
)

var theWriter writer = &published{}

// published is a publisher that uses the C library.
type published struct{ to *publisher.Publisher }

func (p *published) create(r *request) (err error) {
	p.end()
	options := publisher.Options{Dir: r.Dir, Daemon: r.Socket != "", Socket: r.Socket}
	if !options.Daemon {
		options.Capacity = r.Capacity
	}
	if key := r.Board; key != "" {
		options.Board = publisher.Board{Keys: r.Keys, Value: r.Value}
		if _, err := fmt.Sscanf(key, "%d..%d", &options.Board.KeyStart, &options.Board.KeyEnd); err != nil {
			return err
		}
	}
	if r.Gate != "" {
		gate := publisher.Gate{Name: r.Gate, LagBytes: r.Lag, Wait: time.Duration(r.Wait), NeverWaits: r.Wait == 0, Refuses: r.Refuse == 1}
		options.Gates = []publisher.Gate{gate}
	}
	p.to, err = publisher.Open(r.Channel, options)
	return err
}

func (p *published) publish(payload []byte, tag uint16, key bool) error {
	_, err := p.to.PublishWith(payload, tag, key)
	return err
}

func (p *published) publishAll(payloads [][]byte) error {
	_, err := p.to.PublishAll(payloads, 0, false)
	return err
}

func (p *published) next() uint64 { return p.to.NextSequence() }

func (p *published) end() {
	if p.to != nil {
		p.to.Close()
		p.to = nil
	}
}

func (p *published) reason(err error) string {
	var failed *publisher.Error
	var full *publisher.FullError
	if errors.As(err, &full) {
		return "full"
	}
	if errors.As(err, &failed) {
		words := map[publisher.Code]string{
			publisher.CodeInUse: "in use", publisher.CodeTooLarge: "too large", publisher.CodeCutOff: "cut off",
			publisher.CodeDenied: "denied", publisher.CodeNoDaemon: "no daemon", publisher.CodeNoBoard: "no board",
		}
		if word, isKnown := words[failed.Code]; isKnown {
			return word
		}
	}
	return err.Error()
}
