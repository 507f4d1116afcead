package policies

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// doubling is the input of a program that answers each request at once: it wants twice the batch.
type doubling struct{ lines chan<- line }

// Write answers a request. It waits where nobody has taken the answer before.
func (d doubling) Write(b []byte) (int, error) {
	var r request
	if err := json.Unmarshal(b, &r); err != nil {
		return 0, err
	}
	d.lines <- line{text: fmt.Appendf(nil, `{"tick":%d,"change":{"batch":%d}}`, r.Tick,
		2*r.Observation.Setting.Batch)}
	return len(b), nil
}

// Close does nothing.
func (d doubling) Close() error { return nil }

// A late answer counts at the next decision about the same job. When the setting or the members
// have changed meanwhile it is dropped, and the program is asked anew.
func TestLateAnswer(t *testing.T) {
	for name, x := range map[string]struct {
		late basis  // what the late answer is about
		want uint64 // the batch
	}{
		"of the same job":     {basis{3, 2}, 77},
		"of another setting":  {basis{2, 2}, 512},
		"of a larger job":     {basis{3, 4}, 512},
		"of a job before all": {basis{}, 512},
	} {
		lines := make(chan line, 1)
		lines <- line{text: []byte(`{"tick":1,"change":{"batch":77}}`)}
		p := &Program{in: doubling{lines}, lines: lines, tick: 1, pending: true, about: x.late}
		o := sense.Observation{Size: 2, Setting: setting.Setting{Number: 3, Batch: 256}}
		var d decide.Decision
		var err error
		for n := 0; d.To == nil && n < 200; n++ { // a busy machine may not come to it in time
			d, _, err = p.requestDecision(o, nil)
		}
		if d.To == nil {
			t.Errorf("%s: no answer to any of 200 requests, the last: %v", name, err)
		} else if d.To.Setting.Batch != x.want {
			t.Errorf("%s: batch %d, expected %d", name, d.To.Setting.Batch, x.want)
		}
	}
}

// full is the input of a program that takes so many bytes of a request until the time is over.
type full int

// Write takes what there is room for.
func (n full) Write([]byte) (int, error) { return int(n), os.ErrDeadlineExceeded }

// Close does nothing.
func (n full) Close() error { return nil }

// A program is ended that has got half a request, and not where the request was never begun, which
// a busy machine may bring about.
func TestRequestInTime(t *testing.T) {
	for taken, want := range map[full]string{0: "could not be asked", 5: "was ended"} {
		ended := false
		p := &Program{in: taken, kill: func() { ended = true }}
		_, _, err := p.requestDecision(sense.Observation{}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || ended != (taken > 0) || p.pending {
			t.Errorf("after %d bytes: error %v, ended %v, pending %v", taken, err, ended, p.pending)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	p := &Program{in: w, kill: func() { t.Error("a program is ended that could have read") }}
	if err := p.write([]byte("{}\n"), time.Now().Add(-time.Second)); err == nil {
		t.Error("a request is sent after its time")
	}
}
