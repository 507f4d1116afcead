package digits_test

import (
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/examples/digits"
)

// TestAuditFindsNothingAlone ends in the middle of the second epoch.
func TestAuditFindsNothingAlone(t *testing.T) {
	job, err := client.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer job.Close()
	changes, config := 0, digits.Default()
	config.Steps = 130
	config.Audit = &digits.Audit{Changed: func(digits.Change) error { changes++; return nil }}
	if _, err := digits.Train[float32](t.Context(), job, config, func(digits.Progress) error {
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	found := config.Audit.Findings()
	if found.Digest == 0 || changes != 1 {
		t.Errorf("digest %d, %d changes", found.Digest, changes)
	}
	found.Digest = 0
	if want := (digits.Findings{Made: 130, Step: 130}); found != want {
		t.Errorf("found %+v, want %+v", found, want)
	}
}
