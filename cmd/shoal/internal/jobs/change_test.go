package jobs

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/launcher"
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
		line, err := json.Marshal(launcher.Entry{Event: agent.Event{What: "route", Change: &c}})
		if err != nil {
			t.Fatal(err)
		}
		ledger = append(append(ledger, line...), '\n')
	}
	if err := os.WriteFile(launcher.LedgerPath(dir), ledger, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"1": {"change 1 at step 0: batch 64 -> 128"},
		"r1": {"change r1 at step 0: route ring/256 -> star/64@1", "by           policy routes",
			"1.5x speed, in 80 of 100 cases 1 to 2", "1.4x over 8 all-reduces, as predicted",
			"kept at step 0: they took 221 ms"},
	} {
		var out strings.Builder
		if err := explainChange(&out, dir, name, false); err != nil {
			t.Error(err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("change %s: no %q in %q", name, text, out.String())
			}
		}
	}
	err := explainChange(&strings.Builder{}, dir, "r2", false)
	if err == nil || !strings.HasSuffix(err.Error(),
		"has no change r2: there are change 1 and change r1") {
		t.Error(err)
	}
	var n changeName
	for text, is := range map[string]bool{"3": true, "r3": true, "": false, "r": false,
		"s3": false, "3r": false, "-1": false} {
		if err := n.Set(text); (err == nil) != is {
			t.Errorf("%q: %v", text, err)
		}
	}
}
