// Package fabrictest holds what every fabric.Network must do, as tests that run over each
// implementation.
package fabrictest

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
)

// Cluster makes the hosts of one test.
type Cluster interface {
	// Add makes a host that is linked with all others, or soon will be.
	Add(t testing.TB, name fabric.Host, h fabric.Handler) fabric.Network
	// Kill ends a host as if its process had died: no goodbye, and what it had queued is lost.
	Kill(m fabric.Network)
}

// Run runs the suite as subtests; fresh makes a Cluster for one test and cleans up after it. Run
// closes the networks itself, and fails a test that leaves goroutines behind.
func Run(t *testing.T, fresh func(t *testing.T) Cluster) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *hosts)
	}{
		{"MessagesInOrder", messagesInOrder},
		{"MessagesOfAllSizes", messagesOfAllSizes},
		{"UpMaySend", upMaySend},
		{"QueuedMessagesBeforeClose", queuedMessagesBeforeClose},
		{"CloseTellsBoth", closeTellsBoth},
		{"CloseTwice", closeTwice},
		{"PiecesInPlace", piecesInPlace},
		{"PiecesThrownAway", piecesThrownAway},
		{"EmptyPiece", emptyPiece},
		{"LargeTransfer", largeTransfer},
		{"UnusedPayloads", unusedPayloads},
		{"PlaceBlocks", placeBlocks},
		{"PlaceBlocksUntilDown", placeBlocksUntilDown},
		{"PlaceBlocksUntilClose", placeBlocksUntilClose},
		{"Drop", dropTellsBoth},
		{"DropFromMessage", dropFromMessage},
		{"Suspect", suspectEndsNothing},
		{"Seek", seekFindsLostPeers},
		{"NobodyThere", sendToNobody},
		{"ManyHosts", manyHosts},
		{"PeerDies", peerDies},
		{"PeerDiesInTransfer", peerDiesInTransfer},
		{"LateJoiner", lateJoiner},
		{"SameNameAgain", sameNameAgain},
		{"CloseInTransfer", closeInTransfer},
		{"Limited", limited},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &hosts{t: t, cluster: fresh(t)}
			test.run(t, h)
			h.closeAll()
			checkLeaks(t)
		})
	}
}

// hosts is the hosts of one test. The goroutine of the test uses it.
type hosts struct {
	t       *testing.T
	cluster Cluster
	all     []*host // every host that was added, also those that were killed
}

// host is a network and what its handler saw.
type host struct {
	fabric.Network
	*Recorder
}

// add makes a host and waits until it is linked with those before it that live.
func (h *hosts) add(name fabric.Host) *host { return h.addWith(name, NewRecorder(h.t)) }

// addWith is add with this Recorder as the handler.
func (h *hosts) addWith(name fabric.Host, r *Recorder) *host {
	h.t.Helper()
	added := &host{h.cluster.Add(h.t, name, r), r}
	for _, other := range h.all {
		if !other.isClosed() {
			added.WaitUp(other.Self())
			other.WaitUp(added.Self())
		}
	}
	h.all = append(h.all, added)
	return added
}

// kill ends a host as the death of its process would; closeAll closes its network later.
func (h *hosts) kill(victim *host) {
	victim.setClosed()
	h.cluster.Kill(victim.Network)
}

// closeAll closes the networks of all hosts, and fails the test for what their recorders have seen
// go wrong.
func (h *hosts) closeAll() {
	for _, m := range h.all {
		m.setClosed()
		if err := m.Close(); err != nil {
			h.t.Errorf("closing %s: %v", m.Self(), err)
		}
		m.check()
	}
}

// checkLeaks fails the test if a goroutine of the fabric is left. What Close waited for has only
// its last instructions to run, for which it waits, 10 seconds at most.
func checkLeaks(t *testing.T) {
	t.Helper()
	left := ""
	for start := time.Now(); time.Since(start) < 10*time.Second; runtime.Gosched() {
		if left = fabricGoroutines(); left == "" {
			return
		}
	}
	t.Errorf("goroutines that are left:\n%s", left)
}

// fabricGoroutines returns the stacks of the goroutines that run code of the fabric.
func fabricGoroutines() string {
	buf := make([]byte, 4<<20)
	var left []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "/internal/group.") && strings.Contains(stack, "/fabric/") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
