package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/member"
)

// Voter keeps the memory of a host that votes on the generations of a job, so that it may vote again when it has restarted. Save
// comes before the answer is sent: a promise that nobody remembers is none.
type Voter struct {
	store          Store
	job, run, host string
	process        string // tells its own writes from those of another process
	revision       Revision
}

// OpenVoter returns the memory of a host, and makes this process the only one that can write it: another that votes as the same host
// fails at its next Save. The memory is empty if the host has not voted.
func OpenVoter(ctx context.Context, s Store, job, run, host string) (*Voter, member.Memory, error) {
	v := &Voter{store: s, job: job, run: run, host: host, process: rand.Text()}
	for {
		var m member.Memory
		v.revision = 0
		e, err := s.Get(ctx, v.key())
		if err == nil {
			v.revision = e.Revision
			_, m, err = decodeVoter(v.key(), e.Value)
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, member.Memory{}, err
		}
		err = v.write(ctx, m)
		if err == nil {
			return v, m, nil
		}
		if !errors.Is(err, ErrExists) && !errors.Is(err, ErrConflict) { // else another was faster: read again
			return nil, member.Memory{}, err
		}
	}
}

// Save writes the memory. When it fails with ErrUnavailable the host must not answer what it was asked; it will be asked again.
// When it fails with ErrConflict another process votes as this host, and this one must not vote any more.
func (v *Voter) Save(ctx context.Context, m member.Memory) error {
	err := v.write(ctx, m)
	if !errors.Is(err, ErrConflict) {
		return err
	}
	// Perhaps an earlier write was done and its answer lost.
	e, err := v.store.Get(ctx, v.key())
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err == nil {
		process, _, err := decodeVoter(v.key(), e.Value)
		if err != nil {
			return err
		}
		if process == v.process {
			v.revision = e.Revision
			return v.write(ctx, m)
		}
	}
	return fmt.Errorf("another process votes as host %s of the job %q (run %s): end one of the two: %w", v.host, v.job, v.run, ErrConflict)
}

func (v *Voter) write(ctx context.Context, m member.Memory) error {
	value := voterValue{header: header{kindVoter, version}, Job: v.job, Run: v.run, Host: v.host, Process: v.process, Promised: ballotValue(m.Promised)}
	if m.Decided != nil {
		value.Decided = recordToValue(*m.Decided)
	}
	if m.Accepted != nil {
		value.Accepted = &voteValue{ballotValue(m.Accepted.Ballot), recordToValue(m.Accepted.Record)}
	}
	data, err := encode(&value)
	if err != nil {
		return err
	}
	var revision Revision
	if v.revision == 0 {
		revision, err = v.store.Create(ctx, v.key(), data)
	} else {
		revision, err = v.store.Update(ctx, v.key(), data, v.revision)
	}
	if err == nil {
		v.revision = revision
	}
	return err
}

func (v *Voter) key() string { return voterKey(v.job, v.run, v.host) }

func decodeVoter(key string, data []byte) (process string, m member.Memory, err error) {
	var v voterValue
	if err := decode(key, kindVoter, data, &v); err != nil {
		return "", m, err
	}
	m.Promised = member.Ballot(v.Promised)
	if v.Decided != nil {
		r := v.Decided.record()
		m.Decided = &r
	}
	if v.Accepted != nil {
		m.Accepted = &member.Vote{Ballot: member.Ballot(v.Accepted.Ballot), Record: v.Accepted.Record.record()}
	}
	return v.Process, m, nil
}
