package jobs

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/setting"
)

// A change of routes is told apart from one of the setting that has the same number, by its name,
// and its factors are of the speed of all-reduces.
func TestExplainRoute(t *testing.T) {
	dir := t.TempDir()
	var ledger []byte
	for _, c := range []setting.Change{
		{Number: 1, Phase: setting.Kept, Who: "ada@h1", From: "batch=64", To: "batch=128"},
		{Number: 1, Phase: setting.Entered, Policy: setting.Routes, From: "route=ring/256",
			To: "route=star/64@1", Predicted: setting.Band{Low: 1, Mid: 1.5, High: 2}},
		{Number: 1, Phase: setting.Kept, Policy: setting.Routes, From: "route=ring/256",
			To: "route=star/64@1", Predicted: setting.Band{Low: 1, Mid: 1.5, High: 2},
			Measured: 1.4, Steps: 8, Why: "they took 221 ms"},
	} {
		line, err := json.Marshal(runs.Entry{Event: agent.Event{What: "route", Change: &c}})
		if err != nil {
			t.Fatal(err)
		}
		ledger = append(append(ledger, line...), '\n')
	}
	if err := os.WriteFile(runs.LedgerPath(dir), ledger, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"1": {"change 1 at step 0: batch 64 -> 128"},
		"r1": {"change r1 at step 0: route ring/256 -> star/64@1", "by           policy routes",
			"1.5x speed, in 80 of 100 cases 1 to 2", "1.4x over 8 all-reduces, as predicted",
			"kept at step 0: they took 221 ms"},
	} {
		var out strings.Builder
		if err := explainChange(&out, dir, name, false, false); err != nil {
			t.Error(err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("change %s: no %q in %q", name, text, out.String())
			}
		}
	}
	err := explainChange(&strings.Builder{}, dir, "r2", false, false)
	if err == nil || !strings.HasSuffix(err.Error(),
		"has no change r2: there are change 1 and change r1") {
		t.Error(err)
	}
	for _, c := range []struct{ name, have, want string }{
		{"r1", "", "the routes of all-reduces were not changed"},
		{"r1", "1", "the routes of all-reduces were not changed; there is change 1"},
		{"r1", "1 2", "the routes of all-reduces were not changed; there are changes 1 to 2"},
		{"1", "r1", "the setting of the job was not changed, as shoal set JOB batch=512 does; " +
			"there is change r1"},
		{"2", "1", "the only one is change 1"},
		{"4", "1 2 r1", "there are changes 1 to 2 and change r1"},
	} {
		if got := knownChanges(c.name, strings.Fields(c.have)); got != c.want {
			t.Errorf("change %s of %q: %q, want %q", c.name, c.have, got, c.want)
		}
	}
	var n changeName
	for text, is := range map[string]bool{"3": true, "r3": true, "": false, "r": false,
		"s3": false, "3r": false, "-1": false} {
		if err := n.Set(text); (err == nil) != is {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Of a run that is over, the trial that its ledger leaves open is void, in all that explain says.
func TestExplainKilledTrial(t *testing.T) {
	dir := t.TempDir() + "/train"
	for name, text := range map[string]string{"job.json": `{"spec":{"name":"train"}}`,
		"events.jsonl": `{"time":"2026-11-26T16:27:01Z","what":"change","step":70,"change":` +
			`{"number":3,"phase":"entered","policy":"batch","from":"batch=64","to":"batch=128"}}` +
			"\n"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	say := map[string]func(out *strings.Builder, over bool) error{
		"change 3 void: the job ended in its trial": func(out *strings.Builder, over bool) error {
			if over {
				return explain(out, dir, nil, nil, false)
			}
			return explain(out, dir, nil, errors.New("it is busy"), false)
		},
		"void at step 70: the job ended in its trial": func(out *strings.Builder, over bool) error {
			return explainChange(out, dir, "3", false, over)
		},
		`"phase":"void"`: func(out *strings.Builder, over bool) error {
			return explainChange(out, dir, "3", true, over)
		},
	}
	for want, run := range say {
		for _, over := range []bool{true, false} {
			var out strings.Builder
			err := run(&out, over)
			if strings.Contains(out.String(), want) != over || (over && err != nil) {
				t.Errorf("over %v: %v, %q", over, err, out.String())
			}
		}
	}
}
