package tcp

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestSeekKnowsWhoAnswers: a host that has come back under another name, where it listened before,
// is not taken for the one that was lost.
func TestSeekKnowsWhoAnswers(t *testing.T) {
	j := newJob(t, Config{})
	c := j.join(j.newcomerConfig(), fabrictest.NewRecorder(t))
	j.atA.WaitUp("c")
	config := j.newcomerConfig()
	config.Listen = c.Addr()
	c.Crash()
	j.atA.WaitDown("c")
	again := j.join(config, fabrictest.NewRecorder(t))
	j.atA.WaitUp(again.Self())
	for _, m := range []*Network{j.a, j.b} {
		if found := m.Seek(t.Context()); len(found) != 0 {
			t.Errorf("%s finds %v, and only %s listens at %s", m.Self(), found, again.Self(),
				config.Listen)
		}
	}
}
