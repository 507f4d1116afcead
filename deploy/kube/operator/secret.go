package operator

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/fabric/tcp"
)

// The two Secrets of a job, which its pods read as one folder. That which newKey returns has what
// the pods that train know: authority is the key by which they trust each other, and status-token
// lets the operator ask. Were it lost or changed, no pod could join and nobody could ask, so it is
// immutable, and its finalizer keeps it as long as the job is there. The other one is made again
// whenever it is not as it should be: token lets a pod in, and job.yaml is the job spec.

// A token is good for tokenLife, and another one is made when a third of that has passed. Only pods
// that start need one, so none is cut off.
const tokenLife = 24 * time.Hour

// The annotations say when the token was made, and what its SHA-256 is.
const (
	annotationMade = "shoal-ml.github.io/token-made"
	annotationSum  = "shoal-ml.github.io/token-sha256"
)

// keyName returns the name of the Secret with the key of a job. No job has such a name.
func keyName(j *v1alpha1.ShoalJob) string { return j.Name + ".key" }

// newKey returns the Secret with the key of a job.
func newKey(j *v1alpha1.ShoalJob) (*corev1.Secret, error) {
	authority, err := tcp.NewAuthority()
	if err != nil {
		return nil, err
	}
	status := make([]byte, 32)
	_, _ = rand.Read(status) // it never fails
	yes := true
	s := &corev1.Secret{ObjectMeta: ownedBy(j, keyName(j)), Immutable: &yes,
		Data: map[string][]byte{
			"authority":    []byte(base64.StdEncoding.EncodeToString(authority) + "\n"),
			"status-token": []byte(hex.EncodeToString(status) + "\n")}}
	s.Finalizers = []string{finalizer}
	return s, nil
}

// updateSecret makes the data of the other Secret as they should be, and reports whether that
// changed anything.
func updateSecret(s *corev1.Secret, j *v1alpha1.ShoalJob, w wish, key *corev1.Secret,
	now time.Time) (bool, error) {
	if s.Name == "" {
		s.ObjectMeta = ownedBy(j, j.Name)
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	changed := !bytes.Equal(s.Data["job.yaml"], w.text)
	s.Data["job.yaml"] = w.text
	made, err := time.Parse(time.RFC3339, s.Annotations[annotationMade])
	if err == nil && now.Sub(made) < tokenLife/3 && !made.After(now.Add(time.Hour)) &&
		s.Annotations[annotationSum] == sumText(s.Data["token"]) {
		return changed, nil
	}
	authority, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(
		key.Data["authority"])))
	if err != nil {
		return false, fmt.Errorf("authority of Secret %s: %w", key.Name, err)
	}
	token, err := tcp.NewToken(authority, tokenLife)
	if err != nil {
		return false, fmt.Errorf("authority of Secret %s: %w", key.Name, err)
	}
	s.Data["token"] = []byte(token + "\n")
	s.Annotations[annotationMade] = now.UTC().Format(time.RFC3339)
	s.Annotations[annotationSum] = sumText(s.Data["token"])
	return true, nil
}

// sumText returns the SHA-256 of a token as an annotation has it.
func sumText(token []byte) string {
	sum := sha256.Sum256(token)
	return hex.EncodeToString(sum[:])
}

// Secrets remembers of the Secrets of jobs what the operator needs again and again: they are read
// by their names and not watched, so that it need not see those of others. The zero value is empty,
// and nil remembers nothing. Any goroutine may use it.
type Secrets struct {
	mu sync.Mutex // guards of
	of map[client.ObjectKey]known
}

// known is what is known of the Secrets of a job.
type known struct {
	uid   types.UID      // of the job
	key   *corev1.Secret // it never changes, and nobody changes it here; nil = not read yet
	text  string         // the job spec in them
	until time.Time      // when both are to be read again
}

// readAgain is for how long Secrets that were as they should be are not read again for pods that
// start.
const readAgain = 10 * time.Second

// get returns what is known of a job.
func (s *Secrets) get(j *v1alpha1.ShoalJob) (k known) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		k = s.of[client.ObjectKeyFromObject(j)]
	}
	if k.uid != j.UID {
		k = known{uid: j.UID}
	}
	return k
}

// set remembers what is known of a job.
func (s *Secrets) set(j *v1alpha1.ShoalJob, k known) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[client.ObjectKey]known{}
	}
	s.of[client.ObjectKeyFromObject(j)] = k
}

// forget forgets a job that is there no more.
func (s *Secrets) forget(job client.ObjectKey) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, job)
}

// statusToken returns with what the operator asks the pods of a job; "" = there is none yet.
func (r *Reconciler) statusToken(ctx context.Context, j *v1alpha1.ShoalJob) (string, error) {
	k := r.Secrets.get(j)
	if k.key == nil {
		key := new(corev1.Secret)
		if found, err := r.get(ctx, r.Fresh, j, keyName(j), key); err != nil || !found {
			return "", err
		}
		k.key = key
		r.Secrets.set(j, k)
	}
	return strings.TrimSpace(string(k.key.Data["status-token"])), nil
}

// prepareSecrets makes both Secrets of a job what they should be, unless they were a moment ago.
// The one that somebody can change is looked at all the same where a pod is made, which wants it.
func (r *Reconciler) prepareSecrets(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	forPod bool) error {
	k := r.Secrets.get(j)
	fresh := k.key != nil && k.text == string(w.text) && r.Now().Before(k.until)
	if fresh && !forPod {
		return nil
	}
	if !fresh {
		key, err := r.prepareKey(ctx, j)
		if err != nil {
			return err
		}
		k.key, k.text, k.until = key, string(w.text), r.Now().Add(readAgain)
	}
	s := new(corev1.Secret)
	found, err := r.get(ctx, r.Fresh, j, j.Name, s)
	if err != nil {
		return err
	}
	if !found {
		s = new(corev1.Secret)
	}
	changed, err := updateSecret(s, j, w, k.key, r.Now())
	switch {
	case err != nil:
		return err
	case !found:
		err = r.create(ctx, j, s)
	case changed:
		switch err = r.Client.Update(ctx, s); {
		case apierrors.IsForbidden(err):
			err = forbiddenTo("change", s, s.Name, err)
		case apierrors.IsInvalid(err): // as where somebody has made it immutable
			err = &refused{fmt.Sprintf("Secret %s cannot be changed: %v; delete it, and another "+
				"one is made", s.Name, err), true}
		}
	}
	if err == nil {
		r.Secrets.set(j, k)
	}
	return err
}

// prepareKey returns the Secret with the key of a job, which it makes if there is none.
func (r *Reconciler) prepareKey(ctx context.Context, j *v1alpha1.ShoalJob) (*corev1.Secret, error) {
	key := new(corev1.Secret)
	if found, err := r.get(ctx, r.Fresh, j, keyName(j), key); err != nil || found {
		return key, err
	}
	key, err := newKey(j)
	if err == nil {
		err = r.create(ctx, j, key)
	}
	return key, err
}

// release lets a deleted job go, of which no pod is left, and the Secret with its key before it.
func (r *Reconciler) release(ctx context.Context, j *v1alpha1.ShoalJob) error {
	key := new(corev1.Secret)
	err := r.Fresh.Get(ctx, client.ObjectKey{Namespace: j.Namespace, Name: keyName(j)}, key)
	if err == nil && owns(j, key) && controllerutil.RemoveFinalizer(key, finalizer) {
		err = r.Client.Update(ctx, key)
	}
	if apierrors.IsForbidden(err) {
		return forbiddenTo("let go of", key, keyName(j), err)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("letting Secret %s go: %w", keyName(j), err)
	}
	controllerutil.RemoveFinalizer(j, finalizer)
	return client.IgnoreNotFound(r.Client.Update(ctx, j))
}

// releaseKey lets the Secret with the key of a job go that is there no more, as where somebody has
// taken the finalizer from the job before release did this.
func (r *Reconciler) releaseKey(ctx context.Context, job client.ObjectKey) error {
	j, key := &v1alpha1.ShoalJob{ObjectMeta: metav1.ObjectMeta{Name: job.Name}}, new(corev1.Secret)
	err := r.Fresh.Get(ctx, client.ObjectKey{Namespace: job.Namespace, Name: keyName(j)}, key)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil
	case err != nil || key.Labels[LabelJob] != job.Name ||
		!controllerutil.RemoveFinalizer(key, finalizer):
		return err
	}
	if err := r.Fresh.Get(ctx, job, j); !apierrors.IsNotFound(err) {
		return err // another job has this name by now
	}
	if err = r.Client.Update(ctx, key); apierrors.IsForbidden(err) {
		return nil // there is nobody whom that could be told
	}
	return client.IgnoreNotFound(err)
}
