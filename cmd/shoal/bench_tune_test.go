package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
)

// Three hosts on the loopback: every candidate of every size is there once, predicted and measured, and one of them is chosen.
func TestBenchTune(t *testing.T) {
	cmd := newBenchTuneCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"--bytes", "4KiB,300KiB", "--runs", "1", "--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	seen, chosen := map[int64]map[collective.Route]bool{}, map[int64]int{}
	for d := json.NewDecoder(&out); d.More(); {
		var l tuneLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		if seen[l.Bytes] == nil {
			seen[l.Bytes] = map[collective.Route]bool{}
		}
		if l.Hosts != 3 || l.PredictedUS <= 0 || l.MeasuredUS <= 0 || seen[l.Bytes][l.Route] {
			t.Errorf("%+v", l)
		}
		seen[l.Bytes][l.Route] = true
		if l.Chosen {
			chosen[l.Bytes]++
		}
	}
	for _, n := range []int{4 << 10, 300 << 10} {
		for _, r := range collective.Candidates(3, n) {
			if !seen[int64(n)][r] {
				t.Errorf("%d bytes: %v is missing", n, r)
			}
		}
		if chosen[int64(n)] != 1 {
			t.Errorf("%d bytes: %d are chosen", n, chosen[int64(n)])
		}
	}
}

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
		cmd := newBenchTuneCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("shoal bench tune %s: error %v, want one with %q", args, err, want)
		}
	}
}

// What other hosts ask for is not believed: no memory for it, and an answer that says why.
func TestBenchTuneRefuses(t *testing.T) {
	h := newTuneHost()
	h.mesh = nowhere{}
	ring := collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece}
	for _, w := range []tuneWord{
		{Do: "prepare", Flight: 1, Hosts: nil, Bytes: 4, Route: ring},
		{Do: "prepare", Flight: 1, Hosts: hostsOf("me", "b"), Bytes: 3, Route: ring},
		{Do: "prepare", Flight: 1, Hosts: hostsOf("me", "b"), Bytes: 2 << 30, Route: ring},
		{Do: "prepare", Flight: 1, Hosts: hostsOf("me", "b"), Bytes: 4},
		{Do: "prepare", Flight: 1, Hosts: hostsOf("me", "me"), Bytes: 4, Route: ring},
		{Do: "go"},
		{Do: "go", Flight: 7},
		{Do: "land", Flight: 7},
		{Do: "dance"},
	} {
		if err := h.do(w, func(tuneWord) { t.Errorf("%+v is done", w) }); err == nil {
			t.Errorf("%+v is not refused", w)
		}
	}
	if h.in != nil {
		t.Errorf("%d bytes were taken", len(h.in))
	}
}

// nowhere is a mesh without others.
type nowhere struct{ fabric.Mesh }

func (nowhere) Self() fabric.Host { return "me" }

func hostsOf(names ...fabric.Host) []fabric.Host { return names }
