package client

// How Close waits for goroutines. A call that is under way uses the bells, the control block and
// the arena. None of them may be closed meanwhile: the number of a bell's descriptor can soon be
// another file's, and the memory is unmapped.

// use keeps the bells, the control block and the arena open until done is called; ErrClosed if they
// are closed already.
func (k *calls) use() error {
	k.life.RLock()
	if k.closed.Load() {
		k.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (k *calls) done() { k.life.RUnlock() }

// ringOwn wakes whoever waits at this side's bell. A context can call ringOwn long after the wait,
// when the descriptor's number is another file's: then nothing is rung.
func (k *calls) ringOwn() {
	if k.use() == nil {
		k.own.Ring()
		k.done()
	}
}

// stop ends all waits, and returns when nobody uses the bells, the control block and the arena any
// more.
func (k *calls) stop() {
	if k.use() == nil {
		k.mu.Lock()
		k.closed.Store(true)
		k.woken.Broadcast()
		k.mu.Unlock()
		k.own.Ring()
		k.done()
	}
	k.life.Lock()
	defer k.life.Unlock()
}
