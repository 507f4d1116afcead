package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/probe"
)

// tuneLead is the first host of a measurement, which tells the others what to do.
type tuneLead struct {
	*tuneHost
	hosts []fabric.Host
	last  uint64 // number of the newest batch
}

// gather waits until so many hosts are there.
func (l *tuneLead) gather(hosts int) error {
	l.hosts = []fabric.Host{l.network.Self()}
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
		return w.from == n.from && w.word.Do == n.word.Do && w.word.Batch == n.word.Batch
	}
	if i := slices.IndexFunc(waiting, answers); i >= 0 {
		waiting = slices.Delete(waiting, i, i+1)
	}
	return waiting, nil
}

// medians has n exchanges take turns, so that a slow moment of the machine hits all alike, and
// returns the median of each over so many rounds, in seconds. A round before these warms up.
func medians(n, rounds int, exchange func(i int) (float64, error)) ([]float64, error) {
	took := make([][]float64, n)
	for round := range rounds + 1 {
		for i := range took {
			seconds, err := exchange(i)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				took[i] = append(took[i], seconds)
			}
		}
	}
	middle := make([]float64, n)
	for i, list := range took {
		slices.Sort(list)
		middle[i] = list[rounds/2]
	}
	return middle, nil
}

// exchange makes a step's exchange in so many buckets, and returns what it takes in seconds.
// Backward makes the buckets by the clock, and takes no processor.
func (l *tuneLead) exchange(r collective.Route, s cost.Step, buckets int) (float64, error) {
	first := l.last + 1
	l.last += uint64(buckets)
	if err := l.all(tuneWord{Do: "prepare", Batch: first, Batches: buckets, Hosts: l.hosts,
		Route: r, Bytes: s.Bytes}); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := l.dispatch(first, buckets,
		time.Duration(s.Backward*float64(time.Second))); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took.Seconds(), l.all(tuneWord{Do: "deliver", Batch: first})
}

// measure measures all-reduces, which take turns.
func (l *tuneLead) measure(list []cost.Sample, rounds int) error {
	took, err := medians(len(list), rounds, func(i int) (float64, error) {
		return l.exchange(list[i].Route, cost.Step{Bytes: list[i].Bytes}, 1)
	})
	for i, seconds := range took {
		list[i].Hosts, list[i].Seconds = len(l.hosts), seconds
	}
	return err
}

// dispatch lets batches begin one after another, evenly up to the end of backward, and waits until
// all hosts are through with all.
func (l *tuneLead) dispatch(first uint64, batches int, backward time.Duration) error {
	var waiting []tuneNews
	start := time.Now()
	for k := range batches {
		ready := backward * time.Duration(k+1) / time.Duration(batches)
		for wait := ready - time.Since(start); wait > 0; wait = ready - time.Since(start) {
			var err error
			clock := time.AfterFunc(wait, func() { l.news.Put(tuneNews{}) })
			if waiting, err = l.take(waiting); err != nil {
				return err
			}
			clock.Stop()
		}
		w := tuneWord{Do: "go", Batch: first + uint64(k)}
		waiting = append(waiting, l.answers(w)...)
		if err := l.tell(w); err != nil {
			return err
		}
	}
	return l.await(waiting)
}

// probes are the transfers that a model is fitted to: few steps and many, few bytes and many, few
// pieces and many, one stream and all.
func probes() []cost.Sample {
	return []cost.Sample{
		{Route: collective.Route{Strategy: collective.Star{}, Piece: collective.MaxPiece,
			Streams: 1}, Bytes: 64},
		{Route: collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece,
			Streams: 1}, Bytes: 4 << 10},
		{Route: collective.Route{Strategy: collective.Clique{}, Piece: collective.MinPiece,
			Streams: 1}, Bytes: 256 << 10},
		{Route: collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece,
			Streams: 1}, Bytes: 4 << 20},
		{Route: collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece,
			Streams: 1}, Bytes: 8 << 20},
		{Route: collective.Route{Strategy: collective.Ring{}, Piece: 256 << 10,
			Streams: collective.MaxStreams}, Bytes: 8 << 20},
	}
}

// fit measures the probes and returns the model that explains them.
func (l *tuneLead) fit(rounds int) (cost.Model, error) {
	m := cost.Default()
	start := time.Now()
	m.Gamma = probe.Add(func() sense.Duration { return sense.Duration(time.Since(start)) })
	samples := probes()
	if err := l.measure(samples, rounds); err != nil {
		return m, err
	}
	return m.Fit(samples), nil
}
