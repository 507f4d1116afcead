package agent_test

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// FuzzPart asks for parts of all kinds: the agent answers, and goes on serving.
func FuzzPart(f *testing.F) {
	const state = `{"shoal":"job/1","step":5,"cursor":"","workers":1,"notes":{},"tensors":[{"name":"w","dtype":"U8","shape":[8],"bytes":8}]}`
	f.Add([]byte(
		`{"folder":"/","keep":1,"seed":7,"rank":0,"state":{"id":1,"offset":2,"bytes":118},"own":{"id":1,"offset":0,"bytes":2},"body":{"id":1,"offset":0,"bytes":8}}`), []byte("{}"+state))
	f.Add([]byte(
		`{"folder":"c","keep":-1,"rank":-1,"state":{"id":2,"offset":18446744073709551615,"bytes":18446744073709551615}}`), []byte(state))
	a := serveAgent(f)
	w := joinRaw(f, a, 0)
	f.Fuzz(func(t *testing.T, message, memory []byte) {
		w.t = t
		var p api.SaveRequest
		if json.Unmarshal(message, &p) != nil {
			return
		}
		if filepath.IsAbs(p.Folder) {
			p.Folder = t.TempDir()
		}
		copy(w.seg.Mem, memory)
		if r, _ := w.request(&p); r.Type != "save" &&
			(r.Type != "error" || r.Error == "") {
			t.Errorf("%+v for %+v", r, p)
		}
		if r, _ := w.request(&api.SavedRequest{Wait: true}); !r.Done {
			t.Errorf("%+v after %+v", r, p)
		}
	})
}

// What a worker asks the agent to write is checked: a wrong request gets an error that says why.
func TestWrongParts(t *testing.T) {
	a := startAgent(t, 1)
	w := joinRaw(t, a, 0)
	state := `{"shoal":"job/1","step":5,"cursor":"","workers":1,"notes":{},"tensors":[{"name":"w","dtype":"U8","shape":[8],"bytes":8}]}`
	copy(w.seg.Mem, state)
	copy(w.seg.Mem[1000:], "{}")
	good := func() *api.SaveRequest {
		return &api.SaveRequest{Folder: filepath.Join(t.TempDir(), "c"), Keep: 1, Seed: 7,
			State: api.Extent{ID: 1, Bytes: uint64(len(state))},
			Own:   api.Extent{ID: 1, Offset: 1000, Bytes: 2},
			Body:  api.Extent{ID: 1, Offset: 2000, Bytes: 8}}
	}
	for want, change := range map[string]func(p *api.SaveRequest){
		"no absolute path":    func(p *api.SaveRequest) { p.Folder = "relative" },
		"no segment":          func(p *api.SaveRequest) { p.Body.ID = 2 },
		"exceed segment 1":    func(p *api.SaveRequest) { p.Body.Bytes = 8000 },
		"outside segment 1":   func(p *api.SaveRequest) { p.State.Offset = math.MaxUint64 },
		"the description":     func(p *api.SaveRequest) { p.State.Bytes-- },
		"where the share":     func(p *api.SaveRequest) { p.Body.Bytes-- },
		"no JSON object":      func(p *api.SaveRequest) { p.Own.Offset++ },
		"rank 1 in a":         func(p *api.SaveRequest) { p.Rank = 1 },
		"checkpoints to keep": func(p *api.SaveRequest) { p.Keep = 0 },
	} {
		p := good()
		change(p)
		if r, _ := w.request(p); r.Type != "error" ||
			!strings.Contains(r.Error, want) {
			t.Errorf("%+v; want %q", r, want)
		}
	}
	if r, _ := w.request(&api.SaveRequest{}); r.Type != "error" {
		t.Errorf("%+v", r)
	}
	p := good()
	if r, _ := w.request(p); r.Type != "save" {
		t.Errorf("%+v", r)
	}
	if r, _ := w.request(&api.SavedRequest{Wait: true}); !r.Done {
		t.Errorf("%+v", r)
	}
	if _, err := (snapshot.Folder{Root: p.Folder, Keep: 1}).Open(5); err != nil {
		t.Error(err)
	}
}
