package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/node"
)

// tuneLead is the first host of a measurement, which tells the others what to do.
type tuneLead struct {
	*tuneHost
	hosts []fabric.Host
	last  uint64 // number of the newest flight
}

// gather waits until so many hosts are there.
func (l *tuneLead) gather(hosts int) error {
	l.hosts = []fabric.Host{l.mesh.Self()}
	for len(l.hosts) < hosts {
		n, ok := l.news.Take()
		switch {
		case !ok:
			return errTuneEnded
		case n.err != nil:
			return n.err
		case n.up:
			l.hosts = append(l.hosts, n.from)
			l.say(n.from, tuneWord{Do: "wait"})
		}
	}
	return nil
}

// all has every host take a step, and waits for their answers.
func (l *tuneLead) all(w tuneWord) error {
	if err := l.tell(w); err != nil {
		return err
	}
	return l.await(l.answers(w))
}

// answers are those that all hosts owe to a word.
func (l *tuneLead) answers(w tuneWord) (owed []tuneNews) {
	for _, host := range l.hosts {
		owed = append(owed, tuneNews{from: host, word: w})
	}
	return owed
}

// await waits for answers.
func (l *tuneLead) await(waiting []tuneNews) (err error) {
	for err == nil && len(waiting) > 0 {
		waiting, err = l.take(waiting)
	}
	return err
}

// tell has every host take a step, this one last.
func (l *tuneLead) tell(w tuneWord) error {
	for _, host := range l.hosts[1:] {
		l.say(host, w)
	}
	self := l.hosts[0]
	return l.do(w, func(answer tuneWord) { l.news.Put(tuneNews{from: self, word: answer}) })
}

// take waits for news, and returns which of the answers are still missing.
func (l *tuneLead) take(waiting []tuneNews) ([]tuneNews, error) {
	n, ok := l.news.Take()
	switch {
	case !ok:
		return nil, errTuneEnded
	case n.err != nil:
		return nil, n.err
	case n.word.Error != "":
		return nil, fmt.Errorf("%s: %s", n.from, n.word.Error)
	}
	answers := func(w tuneNews) bool {
		return w.from == n.from && w.word.Do == n.word.Do && w.word.Flight == n.word.Flight
	}
	if i := slices.IndexFunc(waiting, answers); i >= 0 {
		waiting = slices.Delete(waiting, i, i+1)
	}
	return waiting, nil
}

// time measures an all-reduce some times, after one that warms up, and returns the median.
func (l *tuneLead) time(r collective.Route, bytes, runs int) (collective.Sample, error) {
	took, err := l.step(r, collective.Step{Bytes: bytes}, 1, runs)
	return collective.Sample{Route: r, Hosts: len(l.hosts), Bytes: bytes, Seconds: took}, err
}

// step measures the exchange of a step in so many buckets some times, after one that warms up, and returns the median in seconds. Backward makes the
// buckets by the clock, and takes no processor.
func (l *tuneLead) step(r collective.Route, s collective.Step, buckets, runs int) (float64, error) {
	took := make([]float64, 0, runs)
	for run := range runs + 1 {
		first := l.last + 1
		l.last += uint64(buckets)
		if err := l.all(tuneWord{Do: "prepare", Flight: first, Flights: buckets, Hosts: l.hosts, Route: r, Bytes: s.Bytes}); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := l.fly(first, buckets, time.Duration(s.Backward*float64(time.Second))); err != nil {
			return 0, err
		}
		if run > 0 {
			took = append(took, time.Since(start).Seconds())
		}
		if err := l.all(tuneWord{Do: "land", Flight: first}); err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// fly lets flights begin one after another, evenly up to the end of backward, and waits until all hosts are through with all.
func (l *tuneLead) fly(first uint64, flights int, backward time.Duration) error {
	var waiting []tuneNews
	start := time.Now()
	for k := range flights {
		ready := backward * time.Duration(k+1) / time.Duration(flights)
		for wait := ready - time.Since(start); wait > 0; wait = ready - time.Since(start) {
			var err error
			clock := time.AfterFunc(wait, func() { l.news.Put(tuneNews{}) })
			if waiting, err = l.take(waiting); err != nil {
				return err
			}
			clock.Stop()
		}
		w := tuneWord{Do: "go", Flight: first + uint64(k)}
		waiting = append(waiting, l.answers(w)...)
		if err := l.tell(w); err != nil {
			return err
		}
	}
	return l.await(waiting)
}

// probes are the transfers that a model is fitted to: few steps and many, few bytes and many, few pieces and many, one stream and all.
var probes = []struct {
	route collective.Route
	bytes int
}{
	{collective.Route{Strategy: collective.Star{}, Piece: collective.MaxPiece, Streams: 1}, 64},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece, Streams: 1}, 4 << 10},
	{collective.Route{Strategy: collective.Clique{}, Piece: collective.MinPiece, Streams: 1}, 256 << 10},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece, Streams: 1}, 4 << 20},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece, Streams: 1}, 8 << 20},
	{collective.Route{Strategy: collective.Ring{}, Piece: 256 << 10, Streams: collective.MaxStreams}, 8 << 20},
}

// fit measures the probes and returns the model that explains them.
func (l *tuneLead) fit(runs int) (collective.Model, error) {
	m := collective.Usual()
	m.Gamma = node.Gamma()
	var samples []collective.Sample
	for _, p := range probes {
		s, err := l.time(p.route, p.bytes, runs)
		if err != nil {
			return m, err
		}
		samples = append(samples, s)
	}
	return m.Fit(samples), nil
}
