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

// tuneLead is the first host of a measurement, which tells the others what to do. One goroutine
// uses it, which takes its news; all methods but expectedAnswers and startOnAll wait for the
// others, until news is closed or a link is lost.
type tuneLead struct {
	*tuneHost
	hosts []fabric.Host // this one first
	last  uint64        // number of the newest batch
}

// awaitHosts waits until so many hosts are there, with this one, and sets l.hosts.
func (l *tuneLead) awaitHosts(hosts int) error {
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
			l.sendWord(n.from, tuneWord{Do: "wait"})
		}
	}
	return nil
}

// runOnAll has every host take a step, and waits until all have.
func (l *tuneLead) runOnAll(w tuneWord) error {
	if err := l.startOnAll(w); err != nil {
		return err
	}
	return l.awaitAnswers(l.expectedAnswers(w))
}

// expectedAnswers returns the answers that all hosts will give to a word.
func (l *tuneLead) expectedAnswers(w tuneWord) (owed []tuneNews) {
	for _, host := range l.hosts {
		owed = append(owed, tuneNews{from: host, word: w})
	}
	return owed
}

// awaitAnswers waits until all these answers have come.
func (l *tuneLead) awaitAnswers(waiting []tuneNews) (err error) {
	for err == nil && len(waiting) > 0 {
		waiting, err = l.awaitAnswer(waiting)
	}
	return err
}

// startOnAll has every host take a step, this one last, and does not wait for their answers.
func (l *tuneLead) startOnAll(w tuneWord) error {
	for _, host := range l.hosts[1:] {
		l.sendWord(host, w)
	}
	self := l.hosts[0]
	return l.runStep(w, func(answer tuneWord) { l.news.Put(tuneNews{from: self, word: answer}) })
}

// awaitAnswer waits for one piece of news, removes the answer that it is from waiting, and returns
// what is left. News that are no answer leave it as it is.
func (l *tuneLead) awaitAnswer(waiting []tuneNews) ([]tuneNews, error) {
	n, ok := l.news.Take()
	switch {
	case !ok:
		return nil, errTuneEnded
	case n.err != nil:
		return nil, n.err
	case n.word.Error != "":
		return nil, fmt.Errorf("%s: %s", n.from, n.word.Error)
	}
	// answers reports whether the news is the answer w.
	answers := func(w tuneNews) bool {
		return w.from == n.from && w.word.Do == n.word.Do && w.word.Batch == n.word.Batch
	}
	if i := slices.IndexFunc(waiting, answers); i >= 0 {
		waiting = slices.Delete(waiting, i, i+1)
	}
	return waiting, nil
}

// medianTimes calls exchange for 0 to n-1 in turn, so that a slow moment of the machine affects all
// alike, and returns the median of each over so many rounds, in seconds. A round before these warms
// up. It waits for exchange, on the goroutine of its caller.
func medianTimes(n, rounds int, exchange func(i int) (float64, error)) ([]float64, error) {
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

// timeExchange makes the exchange of a step in so many buckets, and returns the seconds that it
// takes. The step's computing is a wait, in which one bucket after the other becomes ready.
func (l *tuneLead) timeExchange(r collective.Route, s cost.Step, buckets int) (float64, error) {
	first := l.last + 1
	l.last += uint64(buckets)
	if err := l.runOnAll(tuneWord{Do: "prepare", Batch: first, Batches: buckets, Hosts: l.hosts,
		Route: r, Bytes: s.Bytes}); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := l.dispatch(first, buckets,
		time.Duration(s.Backward*float64(time.Second))); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took.Seconds(), l.runOnAll(tuneWord{Do: "deliver", Batch: first})
}

// measureAll measures the all-reduces of the list in turn, and sets their times.
func (l *tuneLead) measureAll(list []cost.Sample, rounds int) error {
	took, err := medianTimes(len(list), rounds, func(i int) (float64, error) {
		return l.timeExchange(list[i].Route, cost.Step{Bytes: list[i].Bytes}, 1)
	})
	for i, seconds := range took {
		list[i].Hosts, list[i].Seconds = len(l.hosts), seconds
	}
	return err
}

// dispatch starts batches one after another, evenly up to the end of backward, and waits until all
// hosts have completed all.
func (l *tuneLead) dispatch(first uint64, batches int, backward time.Duration) error {
	var waiting []tuneNews
	start := time.Now()
	for k := range batches {
		ready := backward * time.Duration(k+1) / time.Duration(batches)
		for wait := ready - time.Since(start); wait > 0; wait = ready - time.Since(start) {
			var err error
			clock := time.AfterFunc(wait, func() { l.news.Put(tuneNews{}) })
			if waiting, err = l.awaitAnswer(waiting); err != nil {
				return err
			}
			clock.Stop()
		}
		w := tuneWord{Do: "go", Batch: first + uint64(k)}
		waiting = append(waiting, l.expectedAnswers(w)...)
		if err := l.startOnAll(w); err != nil {
			return err
		}
	}
	return l.awaitAnswers(waiting)
}

// probeTransfers returns the transfers that a model is fitted to: few steps and many, few bytes and
// many, few pieces and many, one stream and all. It is pure.
func probeTransfers() []cost.Sample {
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

// fitModel measures the probes so many times, and how fast this processor adds, and returns the
// model that explains them.
func (l *tuneLead) fitModel(rounds int) (cost.Model, error) {
	m := cost.Default()
	start := time.Now()
	m.Gamma = probe.MeasureAdd(func() sense.Duration { return sense.Duration(time.Since(start)) })
	samples := probeTransfers()
	if err := l.measureAll(samples, rounds); err != nil {
		return m, err
	}
	return m.Fit(samples), nil
}
