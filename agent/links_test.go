package agent

import "testing"

// What two hosts say to each other comes as it was said, beside the messages of their agents.
func TestNotesAreWrapped(t *testing.T) {
	said := []byte(`{"line":{"text":"}}"}}`)
	heard, is := unwrapMessage(wrapMessage(said))
	if !is || string(heard) != string(said) {
		t.Errorf("%s becomes %s", said, heard)
	}
	if _, is := unwrapMessage([]byte(`{"frame":{}}`)); is {
		t.Error("a message of an agent is taken for a note")
	}
}
