package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/fabric"
)

// Three hosts on the loopback: every candidate of every size is there once, predicted and measured,
// and one of them is chosen; so is every size of buckets, and none is faster than backward.
func TestBenchTune(t *testing.T) {
	cmd := newCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--bytes", "4KiB,3MiB", "--runs", "1", "--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	type candidate struct {
		bytes, bucket int64
		route         string // none of buckets
	}
	seen, chosen := map[candidate]bool{}, map[candidate]int{}
	for d := json.NewDecoder(&out); d.More(); {
		var l tuneLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		c := candidate{l.Bytes, l.Bucket, l.Route.String()}
		if l.Bucket > 0 {
			c.route = ""
		}
		if l.Hosts != 3 || l.PredictedUS <= l.BackwardUS || l.MeasuredUS <= l.BackwardUS ||
			seen[c] || (l.Bucket > 0) != (l.BackwardUS > 0) {
			t.Errorf("%+v", l)
		}
		seen[c] = true
		if l.Chosen {
			chosen[candidate{bytes: l.Bytes, bucket: min(l.Bucket, 1)}]++
		}
	}
	var all []candidate
	for _, n := range []int{4 << 10, 3 << 20} {
		for _, r := range collective.Candidates(3, n) {
			all = append(all, candidate{int64(n), 0, r.String()})
		}
	}
	for _, bucket := range policy.BucketSizes(3 << 20) {
		all = append(all, candidate{3 << 20, int64(bucket), ""})
	}
	for _, c := range all {
		if !seen[c] {
			t.Errorf("%+v is missing", c)
		}
	}
	for _, c := range []candidate{{4 << 10, 0, ""}, {3 << 20, 0, ""}, {3 << 20, 1, ""}} {
		if chosen[c] != 1 {
			t.Errorf("%+v: %d are chosen", c, chosen[c])
		}
	}
	if len(seen) != len(all) || len(chosen) != 3 {
		t.Errorf("%d candidates, want %d; chosen %v", len(seen), len(all), chosen)
	}
}

// TestMedianTimes checks that exchanges take turns, and that the first round does not count.
func TestMedianTimes(t *testing.T) {
	var turns []int
	took, err := medianTimes(2, 3, func(i int) (float64, error) {
		turns = append(turns, i)
		return map[int]float64{0: 100, 1: 200, 2: 5, 3: 6, 4: 1, 5: 4, 6: 3, 7: 8}[len(turns)-1],
			nil
	})
	if err != nil || !slices.Equal(turns, []int{0, 1, 0, 1, 0, 1, 0, 1}) ||
		!slices.Equal(took, []float64{3, 6}) {
		t.Errorf("turns %v, medians %v, error %v", turns, took, err)
	}
}

// TestPrintErrors checks that what is chosen is compared with the fastest, and that a prediction
// that is too short counts as one that is too long.
func TestPrintErrors(t *testing.T) {
	var out bytes.Buffer
	if err := printErrors(&out,
		[]tuneLine{{MeasuredUS: 100, PredictedUS: 50},
			{MeasuredUS: 107, PredictedUS: 107, Chosen: true},
			{MeasuredUS: 200, PredictedUS: 250}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"chosen takes 7 % more", "1.25 in the median", "2.00 at most"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}

// TestBenchTuneUsage checks what is said of flags that do not fit.
func TestBenchTuneUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--hosts 1":                           "2 hosts or more",
		"--runs 0":                            "once or more",
		"--bytes 6":                           "whole number of f32",
		"--bytes 8GiB":                        "up to 1 GiB",
		"--listen :1 --join x:1 --token-file": "flag needs an argument",
		"--listen :1 --join x:1":              "use one of them",
		"--listen :1":                         "--token-file belongs",
		"--token-file x":                      "--token-file belongs",
		"--join x:1 --token-file /nowhere/at": "the token",
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("tune %s: error %v, want one with %q", args, err, want)
		}
	}
}

// What other hosts ask for is not believed: no memory for it, and an answer that says why.
func TestBenchTuneRefuses(t *testing.T) {
	h := newTuneHost()
	h.network = nowhere{}
	ring := collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece}
	for _, w := range []tuneWord{
		{Do: "prepare", Batch: 1, Batches: 1, Hosts: nil, Bytes: 4, Route: ring},
		{Do: "prepare", Batch: 1, Batches: 1, Hosts: hostsOf("me", "b"), Bytes: 3, Route: ring},
		{Do: "prepare", Batch: 1, Batches: 1, Hosts: hostsOf("me", "b"), Bytes: 2 << 30,
			Route: ring},
		{Do: "prepare", Batch: 1, Batches: 1, Hosts: hostsOf("me", "b"), Bytes: 4},
		{Do: "prepare", Batch: 1, Batches: 1, Hosts: hostsOf("me", "me"), Bytes: 4, Route: ring},
		{Do: "prepare", Batch: 1, Batches: 0, Hosts: hostsOf("me", "b"), Bytes: 4, Route: ring},
		{Do: "prepare", Batch: 1, Batches: 2, Hosts: hostsOf("me", "b"), Bytes: 4, Route: ring},
		{Do: "prepare", Batch: 1, Batches: maxBatches + 1, Hosts: hostsOf("me", "b"),
			Bytes: 1 << 20, Route: ring},
		{Do: "prepare", Batch: 1<<64 - 1, Batches: 1, Hosts: hostsOf("me", "b"), Bytes: 4,
			Route: ring},
		{Do: "go"},
		{Do: "go", Batch: 7},
		{Do: "deliver", Batch: 7},
		{Do: "dance"},
	} {
		if err := h.runStep(w, func(tuneWord) { t.Errorf("%+v is done", w) }); err == nil {
			t.Errorf("%+v is not refused", w)
		}
	}
	if h.in != nil {
		t.Errorf("%d bytes were taken", len(h.in))
	}
}

// nowhere is a network without others.
type nowhere struct{ fabric.Network }

// Self implements fabric.Network.
func (nowhere) Self() fabric.Host { return "me" }

// hostsOf returns its arguments as a list.
func hostsOf(names ...fabric.Host) []fabric.Host { return names }
