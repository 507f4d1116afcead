package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/setting"
)

// refuser is the agent of a job that can do nothing of what it is asked for. Methods that are not
// here panic.
type refuser struct{ follower }

// errRefused is what a refuser says.
var errRefused = errors.New("this job cannot do that")

// Allot refuses any slots.
func (refuser) Allot(map[string]int, string, string) error { return errRefused }

// LimitSending refuses any limit.
func (refuser) LimitSending(float64) error { return errRefused }

// Set refuses any setting.
func (refuser) Set(string, string) error { return errRefused }

// PlanSet refuses any setting.
func (refuser) PlanSet(string, string) (setting.Change, error) {
	return setting.Change{}, errRefused
}

// Reshape refuses any mesh.
func (refuser) Reshape(string, string) error { return errRefused }

// A body that is no request is refused with 400, before the job is asked, and one that this job
// cannot do with 409. A body that states nothing does not end what counts.
func TestBodiesThatAreNoRequests(t *testing.T) {
	r := refuser{}
	r.status.Head = "a"
	l := &launcher{agent: r, registry: newRegistry("a", 0), reporter: newReporter(nil, nil),
		cfg: RunConfig{Fleet: &Fleet{}}}
	l.registry.setJob(&jobMessage{})
	l.limit.bytes.Store(1)
	// largest is a request about slots on as many hosts as a job can have, with long names.
	largest := api.Allot{Slots: map[string]int{}, Who: strings.Repeat("x", 100)}
	for i := range 1024 {
		largest.Slots[fmt.Sprintf("%064d", i)] = 1
	}
	everywhere, err := json.Marshal(largest)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, body string
		code       int
		says       string
	}{
		{api.PathAllot, `{"who":"ada"}`, 400, "slots: none are given"},
		{api.PathAllot, `{"slots":null}`, 400, "{} ends that"},
		{api.PathAllot, `{"slots":{}}`, 409, "cannot do that"},
		{api.PathAllot, `{"slots":{"a":1}}`, 409, "cannot do that"},
		{api.PathAllot, string(everywhere), 409, "cannot do that"},
		{api.PathAllot, string(everywhere) + strings.Repeat(" ", 64<<10), 400, "131072 bytes"},
		{api.PathAllot, `{"slots":{"a":1000,"b":25}}`, 400, "1025 in all, and a job has at most 1024"},
		{api.PathLimit, `{"who":"ada"}`, 400, "bytes: none are given"},
		{api.PathLimit, `{"bytes":null}`, 400, "or 0 for no limit"},
		{api.PathLimit, `{"bytes":1125899906842625}`, 400, "give up to 1125899906842624"},
		{api.PathLimit, `{"bytes":0}`, 409, "cannot do that"},
		{api.PathSet, `{"who":"ada"}`, 400, "is no part of a setting"},
		{api.PathSet, `{"assign":"batch"}`, 400, "is no part of a setting"},
		{api.PathSet, `{"assign":"colour=red","plan":true}`, 400, "colour"},
		{api.PathSet, `{"assign":"batch=8"}`, 409, "cannot do that"},
		{api.PathSet, `{"assign":"size=1025"}`, 400, "1025 is not a size"},
		{api.PathSet, `{"assign":"size=1025","plan":true}`, 400, "1025 is not a size"},
		{api.PathSet, `{"assign":"size=1024"}`, 409, "cannot do that"},
		{api.PathSet, `{"assign":"batch=8,rate=auto","plan":true}`, 409, "cannot do that"},
		{api.PathReshape, `{}`, 400, "mesh: none is given"},
		{api.PathReshape, `{"mesh":"dp=x"}`, 400, "dp=x"},
		{api.PathReshape, `{"mesh":"dp=2"}`, 409, "cannot do that"},
	} {
		answer := httptest.NewRecorder()
		ask := httptest.NewRequestWithContext(t.Context(), "POST", c.path,
			strings.NewReader(c.body))
		switch c.path {
		case api.PathAllot:
			l.answerAllot(answer, ask)
		case api.PathLimit:
			l.answerLimit(answer, ask)
		case api.PathSet:
			l.answerSet(answer, ask)
		case api.PathReshape:
			l.answerReshape(answer, ask)
		}
		if answer.Code != c.code || !strings.Contains(answer.Body.String(), c.says) {
			t.Errorf("%s %s: %d %s, want %d with %q", c.path, c.body, answer.Code, answer.Body,
				c.code, c.says)
		}
	}
}
