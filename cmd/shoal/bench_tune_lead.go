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

// all has every host take a step, this one last, and waits for their answers.
func (l *tuneLead) all(w tuneWord) error {
	for _, host := range l.hosts[1:] {
		l.say(host, w)
	}
	self := l.hosts[0]
	if err := l.do(w, func(answer tuneWord) { l.news.Put(tuneNews{from: self, word: answer}) }); err != nil {
		return err
	}
	for waiting := slices.Clone(l.hosts); len(waiting) > 0; {
		n, ok := l.news.Take()
		i := slices.Index(waiting, n.from)
		switch {
		case !ok:
			return errTuneEnded
		case n.err != nil:
			return n.err
		case n.word.Error != "":
			return fmt.Errorf("%s: %s", n.from, n.word.Error)
		case i >= 0 && n.word.Do == w.Do && n.word.Flight == w.Flight:
			waiting = slices.Delete(waiting, i, i+1)
		}
	}
	return nil
}

// time measures an all-reduce some times, after one that warms up, and returns the median.
func (l *tuneLead) time(r collective.Route, bytes, runs int) (collective.Sample, error) {
	took := make([]float64, 0, runs)
	for run := range runs + 1 {
		l.last++
		if err := l.all(tuneWord{Do: "prepare", Flight: l.last, Hosts: l.hosts, Route: r, Bytes: bytes}); err != nil {
			return collective.Sample{}, err
		}
		start := time.Now()
		if err := l.all(tuneWord{Do: "go", Flight: l.last}); err != nil {
			return collective.Sample{}, err
		}
		if run > 0 {
			took = append(took, time.Since(start).Seconds())
		}
		if err := l.all(tuneWord{Do: "land", Flight: l.last}); err != nil {
			return collective.Sample{}, err
		}
	}
	slices.Sort(took)
	return collective.Sample{Route: r, Hosts: len(l.hosts), Bytes: bytes, Seconds: took[len(took)/2]}, nil
}

// probes are the transfers that a model is fitted to: few steps and many, few bytes and many, few pieces and many.
var probes = []struct {
	route collective.Route
	bytes int
}{
	{collective.Route{Strategy: collective.Star{}, Piece: collective.MaxPiece}, 64},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece}, 4 << 10},
	{collective.Route{Strategy: collective.Clique{}, Piece: collective.MinPiece}, 256 << 10},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece}, 4 << 20},
	{collective.Route{Strategy: collective.Ring{}, Piece: collective.MaxPiece}, 8 << 20},
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
