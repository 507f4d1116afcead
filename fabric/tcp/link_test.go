package tcp

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestUnread: messages that a peer does not take are not kept without end.
func TestUnread(t *testing.T) {
	j := newJob(t, Config{})
	gate := make(chan struct{})
	atC := fabrictest.NewRecorder(t)
	atC.OnMessage = func(fabric.Host, []byte) { <-gate }
	j.join(j.newcomerConfig(), atC)
	j.atA.WaitUp("c")
	for range 2 * maxUnread / fabric.MaxMessage {
		j.a.Send("c", make([]byte, fabric.MaxMessage))
	}
	wantError(t, j.atA.WaitDown("c"), "64 MiB", "unread")
	close(gate)
	atC.WaitDown("a")
	j.checkUnhurt()
}
