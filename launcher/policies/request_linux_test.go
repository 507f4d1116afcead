package policies

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// A program is asked whatever was measured: what is no finite number is as if nobody had told it,
// and no fault of the program.
func TestRequestWithoutNaN(t *testing.T) {
	nan := math.NaN()
	u := machine.Unknown()
	u.CPU, u.Disk = nan, 0.5
	o := sense.Observation{Step: 9, Steps: &sense.StepSeries{},
		Split: sense.Split{Data: nan, Compute: math.Inf(1), Exposed: nan, Optimizer: nan,
			Seconds: 0.25, Slack: []float64{0, nan}},
		Noise:    noise.Estimate{Known: true, Scale: setting.Band{Low: 1, Mid: nan, High: 3}},
		Saves:    sense.Saves{Cost: nan, Count: 1},
		Machines: []machine.Host{{Name: "h1", Usage: u}}}
	text, err := json.Marshal(newRequest(1, o, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"Seconds":0.25`, `"Data":0,`, `"Slack":null`, `{"disk":0.5}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if !math.IsNaN(o.Split.Slack[1]) {
		t.Error("the observation has changed")
	}
}

// A program is told how workers synchronise and whether that may change, and can change it: with
// synchronous SGD goes a round of one step.
func TestProgramsSync(t *testing.T) {
	o := sense.Observation{Steps: &sense.StepSeries{}, Levers: setting.Levers{Sync: "local",
		Round: 16, Auto: true}, Setting: setting.Setting{Batch: 64, Sync: "local", Round: 16}}
	text, err := json.Marshal(newRequest(1, o, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"round":16,"sync":"local"`, `"levers":{"sync":true}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	hello := `{"protocol":1,"name":"x","levers":["sync","round"]}`
	if _, err := readHello([]byte(hello)); err != nil {
		t.Error(err)
	}
	for change, want := range map[string]setting.Setting{
		`{"sync":"ssgd"}`:           {Batch: 64, Sync: "ssgd", Round: 1},
		`{"sync":"sma","round":2}`:  {Batch: 64, Sync: "sma", Round: 2},
		`{"round":4}`:               {Batch: 64, Sync: "local", Round: 4},
		`{"sync":"ssgd","round":8}`: {Batch: 64, Sync: "ssgd", Round: 8}, // which is refused
	} {
		d, _, _, err := readAnswer([]byte(`{"tick":1,"because":"x","change":`+change+`}`), 1, o)
		if err != nil || d.To == nil || !d.To.Setting.Equal(want) {
			t.Errorf("%s: %+v, %v", change, d.To, err)
		}
	}
}
