package deployment_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/deployment"
)

// good is a deployment that is read.
const good = `{"shoal": "deployment/1", "mesh": "dp=1,pp=2(3/1;micro=2)", "batch": 8,
 "model": "00", "cluster": "11", "stages": [],
 "predicted": {"seconds": 1, "low": 1, "high": 1, "bubble": 0, "all_reduce": 0, "update": 0},
 "certificate": {"bound": 1, "gap": 0, "space": ""},
 "runs": {"by": "shoal.train"}}`

// TestParse reads a deployment, and refuses what is none.
func TestParse(t *testing.T) {
	if d, err := deployment.Parse([]byte(good)); err != nil || d.Mesh != "dp=1,pp=2(3/1;micro=2)" {
		t.Errorf("%+v, %v", d, err)
	}
	other := strings.NewReplacer("dp=1,pp=2(3/1;micro=2)", "", `"by": "shoal.train"`,
		`"why_not": "stages differ"`).Replace(good)
	if d, err := deployment.Parse([]byte(other)); err != nil || d.Runs.WhyNot != "stages differ" {
		t.Errorf("%+v, %v", d, err)
	}
	for _, x := range []struct{ old, new, err string }{
		{"deployment/1", "deployment/2", `the field shoal is "deployment/2"`},
		{"pp=2(3/1;", "pp=2(3/1/1;", "shares are 3 numbers"},
		{`"dp=1,pp=2(3/1;micro=2)"`, `""`, "it has no mesh"},
		{`"by": "shoal.train"`, ``, "runs says what runs it"},
		{`"by"`, `"why_not": "x", "by"`, "runs says what runs it"},
		{`"batch"`, `"batches"`, "unknown field"},
	} {
		_, err := deployment.Parse([]byte(strings.Replace(good, x.old, x.new, 1)))
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: error %v, want %q", x.new, err, x.err)
		}
	}
}

// FuzzParse feeds any text to the parser: it does not panic, and what it reads it reads again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := deployment.Parse(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := deployment.Parse(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}
