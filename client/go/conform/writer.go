//go:build cgo

package main

import (
	"errors"

	"shmcast/publisher"
)

var theWriter writer = &published{}

// published publishes by the C library.
type published struct{ to *publisher.Publisher }

func (p *published) create(r *request) (err error) {
	p.end()
	options := publisher.Options{Dir: r.Dir, Daemon: r.Socket != "", Socket: r.Socket}
	if !options.Daemon {
		options.Capacity = r.Capacity
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
	if errors.As(err, &failed) {
		words := map[publisher.Code]string{
			publisher.CodeInUse: "in use", publisher.CodeTooLarge: "too large", publisher.CodeCutOff: "cut off",
			publisher.CodeDenied: "denied", publisher.CodeNoDaemon: "no daemon",
		}
		if word, isKnown := words[failed.Code]; isKnown {
			return word
		}
	}
	return err.Error()
}
