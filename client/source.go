package client

import (
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// A damage is what the agent says is wrong with the bytes of a checkpoint: a snapshot.ErrDamaged.
type damage string

// Error returns what is wrong.
func (d damage) Error() string { return string(d) }

// Is says that the error is snapshot.ErrDamaged.
func (d damage) Is(target error) bool { return target == snapshot.ErrDamaged }

// source is where a training loop looks for its checkpoints when it begins. The goroutine of the
// loop calls all methods, and each does I/O in a folder or waits for the agent.
type source interface {
	// newest finds the newest sealed checkpoint but for `tried` newer ones; found is false where
	// there is none. With 0 it also removes what earlier workers have left unfinished.
	newest(tried int) (a snapshot.Attempt, found bool, err error)
	// fetch returns a folder from which a checkpoint can be read until done is called. The error
	// is snapshot.ErrDamaged where the checkpoint is not as it was sealed.
	fetch(a snapshot.Attempt) (snapshot.Folder, error)
	// done ends the use of the folder that fetch has returned.
	done() error
	// setAside takes a damaged checkpoint out of the way, so that no later run finds it.
	setAside(a snapshot.Attempt) error
}

// newSource returns the source of checkpoints in a folder or in a bucket. It asks nobody yet.
func (j *Job) newSource(f snapshot.Folder) source {
	if snapshot.IsURL(f.Root) {
		return &agentSource{j, f}
	}
	return folderSource{f}
}

// folderSource is a folder that this worker reads itself. Only the goroutine of the loop uses it.
type folderSource struct{ folder snapshot.Folder }

// newest implements source: it reads the folder.
func (s folderSource) newest(tried int) (snapshot.Attempt, bool, error) {
	return s.folder.Newest(tried)
}

// fetch implements source: the folder is here.
func (s folderSource) fetch(snapshot.Attempt) (snapshot.Folder, error) { return s.folder, nil }

// done implements source: there is nothing to end.
func (s folderSource) done() error { return nil }

// setAside implements source: the folder puts the checkpoint aside.
func (s folderSource) setAside(a snapshot.Attempt) error {
	s.folder.Quarantine(a)
	return nil
}

// agentSource is a bucket, which the agent reads. Any goroutine may use it; each method waits for
// the answer of the agent.
type agentSource struct {
	job    *Job
	folder snapshot.Folder
}

// ask has the agent do something with the checkpoints in the bucket, and waits for its reply. It
// sets the folder of the request.
func (s *agentSource) ask(r api.ResumeRequest) (reply api.ResumeReply, err error) {
	r.Folder, r.Keep = s.folder.Root, s.folder.Keep
	_, err = s.job.request(&r, &reply, 0)
	return reply, err
}

// newest implements source: the agent looks into the bucket.
func (s *agentSource) newest(tried int) (a snapshot.Attempt, found bool, err error) {
	reply, err := s.ask(api.ResumeRequest{Do: api.ResumeNewest, Tried: tried})
	if err != nil || !reply.Done {
		return a, false, err
	}
	return snapshot.Attempt{Step: reply.Step, Seed: reply.Seed}, true, nil
}

// fetch implements source: the agent brings the checkpoint here.
func (s *agentSource) fetch(a snapshot.Attempt) (snapshot.Folder, error) {
	reply, err := s.ask(api.ResumeRequest{Do: api.ResumeFetch, Step: a.Step, Seed: a.Seed})
	if err == nil && !reply.Done {
		err = damage(reply.Damaged)
	}
	if err != nil {
		return snapshot.Folder{}, err
	}
	return snapshot.Folder{Root: reply.Folder}, nil
}

// done implements source: the agent removes what it has brought here, unless another worker reads
// it.
func (s *agentSource) done() error {
	_, err := s.ask(api.ResumeRequest{Do: api.ResumeDone})
	return err
}

// setAside implements source: the agent has the bucket put the checkpoint aside.
func (s *agentSource) setAside(a snapshot.Attempt) error {
	_, err := s.ask(api.ResumeRequest{Do: api.ResumeDamaged, Step: a.Step, Seed: a.Seed})
	return err
}
