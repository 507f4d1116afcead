package decide_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/setting"
)

// The samples of a round are divided at once, and rounded once: who has little of a batch has as
// much of each step as there is for it in the round.
func TestSamplesOfRounds(t *testing.T) {
	s := setting.Setting{Batch: 32, Round: 16, Shares: []uint16{119, 119, 43, 119}}
	if got := decide.SamplesOf(s, 4); !slices.Equal(got, []float64{9.5, 9.5, 3.5, 9.5}) {
		t.Errorf("in rounds of 16: %v", got)
	}
	s.Round = 0
	if got := decide.SamplesOf(s, 4); !slices.Equal(got, []float64{10, 10, 2, 10}) {
		t.Errorf("in each step: %v", got)
	}
	s.Batch, s.Round = 0, 16
	if got := decide.SamplesOf(s, 4); !slices.Equal(got, make([]float64, 4)) {
		t.Errorf("without a batch: %v", got)
	}
}
