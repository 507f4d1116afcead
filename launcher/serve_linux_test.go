package launcher_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/mem"
	"github.com/shoal-ml/shoal/launcher"
)

// lostHead is a host that tells nothing of its job, and loses each host that it meets.
type lostHead struct{ hub *mem.Hub }

func (h *lostHead) Up(peer fabric.Host)                    { h.hub.Cut("head", peer) }
func (h *lostHead) Message(fabric.Host, []byte)            {}
func (h *lostHead) Place(fabric.Host, fabric.Piece) []byte { return nil }
func (h *lostHead) Arrived(fabric.Host, fabric.Piece)      {}
func (h *lostHead) Down(fabric.Host, error)                {}

// A host that is lost before it was told what to run joins again, and says so; after a few times it
// gives up.
func TestServeJoinsAgainBeforeItIsToldTheJob(t *testing.T) {
	hub := mem.NewHub()
	head := &lostHead{hub}
	defer hub.Add("head", head).Close()
	joins, notes := 0, new(bytes.Buffer)
	err := launcher.Serve(t.Context(), launcher.ServeConfig{Dir: t.TempDir(), Slots: 1,
		Stdout: notes, Stderr: notes, Link: func(h fabric.Handler) (fabric.Network, error) {
			joins++
			return hub.Add("b", h), nil
		}})
	if err == nil || !strings.Contains(err.Error(), "the host that it joined, head, was lost") {
		t.Errorf("Serve ends with %v", err)
	}
	if said := strings.Count(notes.String(), "; joining again\n"); joins != 4 || said != 3 {
		t.Errorf("the host joined %d times, and said:\n%s", joins, notes)
	}
}
